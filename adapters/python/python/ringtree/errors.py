"""ringtree's exceptions, which have a one-line message for people and fields for programs."""


class Error(RuntimeError):
    """Base class of all errors raised by ringtree.

    After any error except UsageError, the communicator is unusable on all ranks, and every rank
    gets the first error. Fields whose values are not known are None or empty. Rank numbers refer to
    the communicator that raised the error.

    >>> import ringtree
    >>> error = ringtree.Error("rank 3 is gone")
    >>> str(error), error.peer, error.missing
    ('rank 3 is gone', None, ())
    """

    rank: int | None = None
    """The rank that detected the error."""
    peer: int | None = None
    """The other rank that the error concerns."""
    operation: str | None = None
    """The collective in which the error occurred, such as 'all-reduce'. None for a message."""
    sequence: int | None = None
    """The number of the call in which the error occurred, counted from 1."""
    missing: tuple[int, ...] = ()
    """The first ranks that were holding up the call that timed out."""
    missing_count: int = 0
    """The number of ranks that were known to hold up the call."""
    elapsed: float | None = None
    """The number of seconds for which the call had been in flight when it timed out."""


class UsageError(Error, ValueError):
    """The call was invalid. Nothing was sent."""


class BufferUsageError(UsageError, TypeError, BufferError):
    """A buffer that was passed to a call cannot be used."""


def _bufferless(object: object, error: Exception) -> BufferUsageError:
    """Return the exception for an object whose memory is not accessible because of `error`."""
    if not isinstance(error, TypeError):
        return BufferUsageError(str(error))
    instead = "a NumPy array or array.array"
    if hasattr(object, "numpy"):
        instead = "tensor.numpy(), or use ringtree.torch.all_reduce_"
    return BufferUsageError(f"'{type(object).__name__}' is not a buffer; pass {instead}")


class ConfigurationError(Error, ValueError):
    """A setting is missing or malformed."""


class JoinError(Error, ConnectionError):
    """The ranks could not be connected."""


class MismatchError(Error):
    """Different ranks made different calls."""


class PeerLostError(Error, ConnectionError):
    """A rank died, or left while another rank still needed it."""


class DeadlineError(Error, TimeoutError):
    """A call did not complete within its timeout."""


class ProtocolError(Error):
    """A peer sent data that does not belong to any call."""
