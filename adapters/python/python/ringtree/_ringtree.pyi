from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol

from typing_extensions import Buffer as _Buffer
from typing_extensions import Self, TypeAlias

from .errors import Error

Op: TypeAlias = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]
Dtype: TypeAlias = Literal[
    "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"
]

__version__: str

class _Array(Protocol):
    """A NumPy array. NumPy's stubs do not declare it as a buffer before Python 3.12."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

Buffer: TypeAlias = _Buffer | _Array

class Work:
    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...

class Communicator:
    timeout: float
    @staticmethod
    def from_env() -> Communicator: ...
    @staticmethod
    def from_env_or_alone() -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    def block(self, count: int) -> tuple[int, int]: ...
    def all_reduce(
        self,
        buffer: Buffer,
        op: Op = "sum",
        *,
        factor: float | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def all_reduce_into(
        self,
        input: Buffer,
        output: Buffer,
        op: Op = "sum",
        *,
        factor: float | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def broadcast(self, buffer: Buffer, root: int, *, dtype: Dtype | None = None) -> None: ...
    def reduce(
        self,
        buffer: Buffer,
        op: Op,
        root: int,
        *,
        factor: float | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def reduce_scatter(
        self,
        buffer: Buffer,
        op: Op = "sum",
        *,
        factor: float | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def reduce_scatter_into(
        self,
        input: Buffer,
        output: Buffer,
        op: Op = "sum",
        *,
        counts: list[int] | None = None,
        factor: float | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def all_gather(self, buffer: Buffer, *, dtype: Dtype | None = None) -> None: ...
    def all_gather_into(
        self,
        input: Buffer,
        output: Buffer,
        *,
        counts: list[int] | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def gather_into(
        self, input: Buffer, output: Buffer | None, root: int, *, dtype: Dtype | None = None
    ) -> None: ...
    def scatter_into(
        self, input: Buffer | None, output: Buffer, root: int, *, dtype: Dtype | None = None
    ) -> None: ...
    def all_to_all_into(
        self,
        input: Buffer,
        output: Buffer,
        *,
        send: list[int] | None = None,
        receive: list[int] | None = None,
        dtype: Dtype | None = None,
    ) -> None: ...
    def barrier(self) -> None: ...
    def send(
        self, buffer: Buffer, peer: int, *, tag: int = 0, dtype: Dtype | None = None
    ) -> None: ...
    def recv(
        self, buffer: Buffer, peer: int, *, tag: int = 0, dtype: Dtype | None = None
    ) -> None: ...
    def start_send(
        self, buffer: Buffer, peer: int, *, tag: int = 0, dtype: Dtype | None = None
    ) -> Work: ...
    def start_recv(
        self, buffer: Buffer, peer: int, *, tag: int = 0, dtype: Dtype | None = None
    ) -> Work: ...
    def split(self, color: int | None, key: int = 0) -> Communicator | None: ...
    def subgroup(self, ranks: list[int]) -> Communicator: ...
    def fail(self, line: str) -> None: ...
    def failure(self) -> Error | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

def connect(told: Mapping[str, object]) -> Communicator: ...
def connect_from_env(may_be_alone: bool, timeout: float | None) -> Communicator: ...
def forked() -> None: ...
