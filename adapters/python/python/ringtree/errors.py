"""ringtree's exceptions, with a one-line message for people and fields for programs."""


class Error(RuntimeError):
    """Any error that ringtree raises.

    After any error except UsageError, the communicator is unusable on all ranks, and every rank
    gets the first error. Fields whose values are not known are None or empty. Ranks are numbered
    within the communicator.

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
    """The collective in which the error occurred, such as 'all-reduce', or None for a message."""
    sequence: int | None = None
    """The number of the call in which the error occurred, from 1."""
    missing: tuple[int, ...] = ()
    """The ranks that held up the call that timed out."""
    elapsed: float | None = None
    """The number of seconds that the call was in flight before it timed out."""


class UsageError(Error, ValueError):
    """The call was invalid. Nothing was sent."""


class BufferUsageError(UsageError, TypeError, BufferError):
    """The call cannot use a buffer."""


class ConfigurationError(Error, ValueError):
    """A setting is missing or malformed."""


class JoinError(Error, ConnectionError):
    """The ranks could not connect."""


class MismatchError(Error):
    """The ranks made different calls."""


class PeerLostError(Error, ConnectionError):
    """A rank died, or left while another rank still needed it."""


class DeadlineError(Error, TimeoutError):
    """A call did not complete in time."""


class ProtocolError(Error):
    """A peer sent data that does not belong to any call."""
