"""The compiled part of the package. A test compares the docstrings with those of the module."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, final

from typing_extensions import Buffer as _Exporter
from typing_extensions import Self, TypeAlias

from .errors import Error

_Op: TypeAlias = Literal[
    "sum", "prod", "min", "max", "avg", "band", "bor", "bxor",
    "SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR",
]
_Dtype: TypeAlias = Literal[
    "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"
]

__all__ = [
    "CallStats",
    "command",
    "Communicator",
    "connect",
    "connect_from_env",
    "forked",
    "Info",
    "MessageBatch",
    "stop_log",
    "Work",
    "__version__",
]

__version__: str

class _Array(Protocol):
    """A NumPy array. NumPy's stubs do not declare it as a buffer before Python 3.12."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_Buffer: TypeAlias = _Exporter | _Array

@final
class Work:
    """A call in flight. `wait()` returns once the call has completed, and raises its error if it
    failed.
    """

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has completed. Raise its error if it failed. After this, the call's
        buffers can be used again.

        `timeout` limits how long to wait, in seconds. If it expires, DeadlineError is raised and
        the call remains in flight.
        """

    def is_finished(self) -> bool:
        """Return True if the call has succeeded or failed, or False if it is still in flight. After
        True is returned, `wait` does not block.
        """

    def done(self) -> bool:
        """Same as `is_finished`."""

    @property
    def source(self) -> int | None:
        """The rank that sent the message of a `start_recv_any` for which `wait` has returned. None
        for all other calls, and until `wait` has returned.
        """

@final
class MessageBatch:
    """A batch of messages, which `Communicator.batch` returns."""

    def send(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> None:
        """Send `buffer` to rank `peer` as part of the batch."""

    def recv(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> None:
        """Receive a message from rank `peer` into `buffer` as part of the batch."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class CallStats:
    """The count of one kind of call over one transport."""

    @property
    def call(self) -> str:
        """The name of the collective, "send" or "recv"."""

    @property
    def transport(self) -> str:
        """The transport of the call's messages: shm, tcp, shm+tcp or none."""

    @property
    def calls(self) -> int:
        """The number of calls that were made."""

    @property
    def bytes(self) -> int:
        """The number of bytes in the buffers of these calls. If a call has an input and an output, the
        larger one counts.
        """

    @property
    def waited(self) -> float:
        """The time, in seconds, for which threads waited for these calls."""

@final
class Info:
    """How a communicator is set up. `str(info)` is one line."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def hosts(self) -> int:
        """The number of hosts on which the ranks run."""

    @property
    def name(self) -> str | None:
        """The name set by `with_name`, or None."""

    @property
    def transport(self) -> str:
        """The name of the transport, which is shm, tcp or shm+tcp."""

    @property
    def tuning_origin(self) -> str:
        """The source of the table from which algorithms are chosen."""

    @property
    def algorithm(self) -> str | None:
        """The algorithm that a setting requires, or None."""

    @property
    def is_reproducible(self) -> bool:
        """True if sums have the same bits for every algorithm and network."""

@final
class Communicator:
    """A group of ranks that exchange data. All ranks must make their calls on it in the same order.

    A buffer is an object with contiguous memory, such as a NumPy array, array.array, bytearray or
    memoryview. Its elements have one of the types i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64. If you
    pass `dtype`, such as dtype="bf16", the bytes of a buffer are treated as elements of that type.
    Elements can also be bool. Their sum is then "any", and their product is "all".

    A call that fails raises ringtree.Error or one of its subclasses: UsageError if the call is
    invalid, MismatchError if different ranks made different calls, PeerLostError if a rank is lost,
    and DeadlineError if the call takes longer than `timeout` seconds. After any error except
    UsageError, the communicator is unusable.

    >>> import array, ringtree
    >>> comm = ringtree.Communicator.from_env_or_alone()
    >>> numbers = array.array("f", [1.0, 2.0])
    >>> comm.all_reduce(numbers, "sum")
    >>> numbers[0] == comm.world_size
    True
    >>> comm.close()
    """

    @staticmethod
    def from_env() -> Communicator:
        """Return the communicator that contains all ranks that a launcher has started: `ringtree run`,
        torchrun, mpirun or srun.

        Wait until all ranks have joined. Raise ConfigurationError if a variable is missing or
        malformed, and JoinError if the ranks cannot be connected.
        """

    @staticmethod
    def from_env_or_alone() -> Communicator:
        """Like from_env, but with only a single rank if the program was not started by a launcher."""

    @property
    def rank(self) -> int:
        """The rank of this process in the group, counted from 0."""

    @property
    def world_size(self) -> int:
        """The number of ranks in the group."""

    @property
    def local_rank(self) -> int:
        """The index of this process among the processes on its host, counted from 0."""

    @property
    def transport(self) -> str:
        """The name of the transport, which is shm, tcp or shm+tcp."""

    @property
    def timeout(self) -> float:
        """The timeout for each call, in seconds. A call that takes longer raises DeadlineError. If
        calls have no timeout, this is math.inf.
        """

    @timeout.setter
    def timeout(self, value: float, /) -> None: ...
    def info(self) -> Info:
        """Return how the communicator is set up. This method does not communicate."""

    def stats(self) -> list[CallStats]:
        """Return how often this rank has made each kind of call on this communicator. This method does
        not communicate.
        """

    def block(self, count: int) -> tuple[int, int]:
        """Return the indices (start, end) of this rank's own block in a buffer of `count` elements.

        >>> import ringtree
        >>> with ringtree.Communicator.from_env_or_alone() as comm:
        ...     start, end = comm.block(6)
        >>> 0 <= start < end <= 6
        True
        """

    def all_reduce(
        self,
        buffer: _Buffer,
        op: _Op = "sum",
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Replace `buffer` on every rank with the reduction of all ranks' buffers.

        `op` is sum, prod, min, max, avg, band, bor or bxor. If `op` is sum and `factor` is not
        None, this rank's contribution is multiplied by `factor` first.
        """

    def all_reduce_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op = "sum",
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Write the reduction of all ranks' `input` to `output` on every rank. `input` is not changed."""

    def broadcast(self, buffer: _Buffer, root: int, *, dtype: _Dtype | None = None) -> None:
        """Replace the contents of `buffer` on every rank with the contents of `buffer` on rank `root`."""

    def reduce(
        self,
        buffer: _Buffer,
        op: _Op,
        root: int,
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Replace `buffer` on rank `root` with the reduction of all ranks' buffers. Afterward, the
        contents of `buffer` are unspecified on all ranks except `root`.
        """

    def reduce_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op,
        root: int,
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Write the reduction of all ranks' `input` to `output` on rank `root`. `input` is not
        changed. The contents of `output` are unspecified on all ranks except `root`.
        """

    def reduce_scatter(
        self,
        buffer: _Buffer,
        op: _Op = "sum",
        *,
        counts: list[int] | None = None,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Replace this rank's own block of `buffer` (see `block`) with the reduction of that block
        across all ranks. Afterward, the contents of the rest of `buffer` are unspecified.

        `counts` is a list that contains the length of each rank's block and must be the same on all
        ranks. By default, the blocks are as even as possible.
        """

    def reduce_scatter_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op = "sum",
        *,
        counts: list[int] | None = None,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Reduce all ranks' `input` and write this rank's block of the result to `output`. The inputs
        are split evenly, or according to `counts`, a list that contains one number per rank and
        must be the same on all ranks.
        """

    def all_gather(
        self, buffer: _Buffer, *, counts: list[int] | None = None, dtype: _Dtype | None = None
    ) -> None:
        """Replace `buffer` on every rank with all ranks' own blocks, in rank order. Each rank
        contributes only its own block of `buffer` (see `block`).

        `counts` is a list that contains the length of each rank's block and must be the same on all
        ranks. By default, the blocks are as even as possible.
        """

    def all_gather_into(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Gather all ranks' `input` into `output` on every rank, in rank order. `output` is split
        evenly, or according to `counts`, a list that contains one number per rank and must be the
        same on all ranks.
        """

    def gather(
        self,
        buffer: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Replace `buffer` on rank `root` with all ranks' own blocks, in rank order. Each rank
        contributes only its own block of `buffer` (see `block`). Afterward, the contents of
        `buffer` are unspecified on all ranks except `root`.

        `counts` is a list that contains the length of each rank's block and must be the same on all
        ranks. By default, the blocks are as even as possible.
        """

    def gather_into(
        self,
        input: _Buffer,
        output: _Buffer | None,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Gather all ranks' `input` into `output` on rank `root`, in rank order. Other ranks pass None
        instead of `output`.

        All inputs have the same length, unless you pass `counts`, a list that contains the length
        of each rank's input and must be the same on all ranks.
        """

    def scatter(
        self,
        buffer: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Replace each rank's own block of `buffer` (see `block`) with that block of the buffer on
        rank `root`. Afterward, the contents of the rest of `buffer` are unspecified on all ranks
        except `root`.

        `counts` is a list that contains the length of each rank's block and must be the same on all
        ranks. By default, the blocks are as even as possible.
        """

    def scatter_into(
        self,
        input: _Buffer | None,
        output: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Copy block i of `input` on rank `root` to `output` on rank i. Other ranks pass None as
        `input`.

        All blocks have the same length, unless you pass `counts`, a list that contains the length
        of each rank's block and must be the same on all ranks.
        """

    def all_to_all(self, buffer: _Buffer, *, dtype: _Dtype | None = None) -> None:
        """Exchange blocks between all ranks: block j of rank i becomes block i of rank j. All blocks
        have the same length.
        """

    def all_to_all_into(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        send: list[int] | None = None,
        receive: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> None:
        """Copy block j of rank i's `input` to block i of rank j's `output`. All blocks have the same
        length unless you pass `send` and `receive`. If you do, the block for rank j has send[j]
        elements, and the block from rank i has receive[i] elements.
        """

    def barrier(self) -> None:
        """Wait until every rank has called this method."""

    def start_all_reduce(
        self,
        buffer: _Buffer,
        op: _Op = "sum",
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `all_reduce` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_all_reduce_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op = "sum",
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `all_reduce_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_broadcast(self, buffer: _Buffer, root: int, *, dtype: _Dtype | None = None) -> Work:
        """Start `broadcast` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_reduce(
        self,
        buffer: _Buffer,
        op: _Op,
        root: int,
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `reduce` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_reduce_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op,
        root: int,
        *,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `reduce_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_reduce_scatter(
        self,
        buffer: _Buffer,
        op: _Op = "sum",
        *,
        counts: list[int] | None = None,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `reduce_scatter` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_reduce_scatter_into(
        self,
        input: _Buffer,
        output: _Buffer,
        op: _Op = "sum",
        *,
        counts: list[int] | None = None,
        factor: float | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `reduce_scatter_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_all_gather(
        self, buffer: _Buffer, *, counts: list[int] | None = None, dtype: _Dtype | None = None
    ) -> Work:
        """Start `all_gather` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_all_gather_into(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `all_gather_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_gather(
        self,
        buffer: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `gather` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_gather_into(
        self,
        input: _Buffer,
        output: _Buffer | None,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `gather_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_scatter(
        self,
        buffer: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `scatter` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_scatter_into(
        self,
        input: _Buffer | None,
        output: _Buffer,
        root: int,
        *,
        counts: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `scatter_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_all_to_all(self, buffer: _Buffer, *, dtype: _Dtype | None = None) -> Work:
        """Start `all_to_all` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_all_to_all_into(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        send: list[int] | None = None,
        receive: list[int] | None = None,
        dtype: _Dtype | None = None,
    ) -> Work:
        """Start `all_to_all_into` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def start_barrier(self) -> Work:
        """Start `barrier` and return a Work. When `wait()` returns, the call has completed, and its buffers, if any, can be used again.

        The calls of a communicator run in the order in which they were started.
        """

    def send(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> None:
        """Send `buffer` to rank `peer`, which must receive the same number of elements of the same
        type with the same tag. Messages are received in the order in which they were sent.
        """

    def recv(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> None:
        """Receive the message that rank `peer` sends with this tag, and store it in `buffer`."""

    def start_send(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> Work:
        """Start sending `buffer` and return a Work. `buffer` can be used again after `wait()` returns."""

    def start_recv(
        self, buffer: _Buffer, peer: int, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> Work:
        """Start receiving and return a Work. `buffer` contains the message after `wait()` returns."""

    def start_recv_any(
        self, buffer: _Buffer, *, tag: int = 0, dtype: _Dtype | None = None
    ) -> Work:
        """Start receiving from any rank and return a Work. After `wait()` returns, `buffer` contains
        the message, and `source` of the Work is the rank that sent it.
        """

    def recv_any(self, buffer: _Buffer, *, tag: int = 0, dtype: _Dtype | None = None) -> int:
        """Receive a message from any rank into `buffer` and return the rank that sent it.

        The message is the next one from that rank. It must have the length of `buffer`, its type
        and this tag.
        """

    def sendrecv(
        self,
        input: _Buffer,
        to: int,
        output: _Buffer,
        source: int,
        *,
        tag: int = 0,
        dtype: _Dtype | None = None,
    ) -> None:
        """Send `input` to rank `to` and receive `output` from rank `source` at the same time.

        All ranks of a ring, or both ranks of a pair, can make this call at the same time. The
        buffers have the same type but can have different lengths. If `to` and `source` are this
        rank itself, the call copies `input` to `output`.
        """

    def batch(self) -> MessageBatch:
        """Return a batch of messages, for use in a `with` statement. The messages start when the
        statement ends, and have completed after it. If the body of the statement raises an
        exception, no message of the batch starts.

        The order of sends and receives in a batch does not matter, except for messages between the
        same two ranks.
        """

    def broadcast_value(self, value: Any, root: int) -> Any:
        """Send the object that rank `root` passes to all ranks, and return it on each of them. The
        objects that other ranks pass are ignored.

        Use this for settings and other small objects, whose pickles have at most 100 MB. Tensors
        travel faster with `broadcast`. No other thread may use the communicator meanwhile.

        Warning: objects are pickled, and unpickling can run any code that the sender chooses. The
        ranks of a job must trust each other.
        """

    def all_gather_value(self, value: Any) -> list[Any]:
        """Gather the objects of all ranks on every rank, and return a list of them in rank order.

        The limit, the rules and the warning of `broadcast_value` apply.
        """

    def gather_value(self, value: Any, root: int) -> list[Any] | None:
        """Gather the objects of all ranks on rank `root`, and return a list of them in rank order.
        Return None on the other ranks.

        The limit, the rules and the warning of `broadcast_value` apply.
        """

    def send_value(self, value: Any, peer: int, *, tag: int = 0) -> None:
        """Send an object to rank `peer`, which must call `recv_value` with the same tag.

        Like `send`, this may wait until `peer` receives the object. The limit, the rules and the
        warning of `broadcast_value` apply.
        """

    def recv_value(self, peer: int, *, tag: int = 0) -> Any:
        """Receive the object that rank `peer` sends with `send_value` and this tag, and return it.

        Warning: objects are pickled, and unpickling can run any code that the sender chooses. The
        ranks of a job must trust each other.
        """

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a communicator for the ranks that pass the same `color`, ordered by `key`. Return
        None if `color` is None. All ranks must call this method.
        """

    def subgroup(self, ranks: list[int]) -> Communicator:
        """Return a communicator for the given ranks, in the order of the list. Only these ranks call
        this method.
        """

    def duplicate(self) -> Communicator:
        """Return a new communicator for the same ranks. Its calls and messages are ordered
        separately. All ranks must call this method.
        """

    def with_timeout(self, seconds: float) -> Communicator:
        """Return a handle to the same communicator whose calls use this timeout, in seconds.

        All handles share the order of calls. `close` of one handle closes the communicator.
        """

    def without_timeout(self) -> Communicator:
        """Return a handle to the same communicator whose calls have no timeout.

        Such calls suit workers that wait for requests. If another rank makes the same call with a
        timeout, that timeout applies to all ranks. If a rank dies, the waiting ranks get an error.
        """

    def with_name(self, name: str) -> Self:
        """Set the name of the communicator and return it. Errors and warnings contain the name.

        Pass the same name on all ranks. The name applies to all handles of the communicator.
        """

    def abort(self, line: str) -> None:
        """Make all calls in flight and all subsequent calls fail on all ranks with the message `line`."""

    def error(self) -> Error | None:
        """Return the first error, which all subsequent calls raise, or None if no call has failed."""

    def close(self) -> None:
        """Complete the calls in flight, leave the group, and notify the other ranks. Subsequent calls
        raise UsageError, also through other handles. A communicator is closed automatically when
        the program ends.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

def connect(arguments: Mapping[str, object]) -> Communicator:
    """Create a communicator from the arguments of `init`. Internal to the package."""

def connect_from_env(may_be_alone: bool, timeout: float | None) -> Communicator:
    """Create a communicator from the environment. It consists of a single rank if `may_be_alone` is
    true and the program was not started by a launcher. Internal to the package.
    """

def command(program: tuple[str, list[str]], arguments: list[str]) -> int:
    """Run the `ringtree` command with the given arguments and return its exit code.

    `program` consists of the executable file that the command uses to start itself again and the
    arguments that precede the command's own arguments.
    """

def stop_log() -> None:
    """Stop passing events to `logging`, and wait until no thread is passing one. Internal to the
    package.
    """

def forked() -> None:
    """Record that this process is a newly forked child. Internal to the package."""
