"""What ringtree raises: one line for people, and fields for programs."""


class Error(RuntimeError):
    """Any failure of ringtree.

    After any but a UsageError the communicator is unusable, on all ranks, which all get the first
    error. The fields hold what is known; the ranks are numbers of the communicator.

    >>> import ringtree
    >>> error = ringtree.Error("rank 3 is gone")
    >>> str(error), error.peer, error.missing
    ('rank 3 is gone', None, ())
    """

    rank: int | None = None
    """The rank that saw it."""
    peer: int | None = None
    """The other rank that it is about."""
    operation: str | None = None
    """The collective in which it happened, such as 'all-reduce'; None for a message."""
    sequence: int | None = None
    """The number of the call in which it happened, from 1."""
    missing: tuple[int, ...] = ()
    """The ranks that hold up what did not finish in time."""
    elapsed: float | None = None
    """How many seconds the call had been under way."""


class UsageError(Error, ValueError):
    """The call itself was wrong; nothing was sent."""


class BufferUsageError(UsageError, TypeError, BufferError):
    """A buffer was not one that the call can take."""


class ConfigurationError(Error, ValueError):
    """A setting is missing or malformed."""


class JoinError(Error, ConnectionError):
    """The ranks could not be brought together."""


class MismatchError(Error):
    """Ranks made different calls."""


class PeerLostError(Error, ConnectionError):
    """A rank died, or left while another still needed it."""


class DeadlineError(Error, TimeoutError):
    """A call did not finish in time."""


class ProtocolError(Error):
    """A peer sent bytes that nothing accounts for."""
