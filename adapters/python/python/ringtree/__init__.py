"""Collective communication between the processes of a job.

>>> import ringtree
>>> comm = ringtree.init(rank=0, world_size=1)
>>> numbers = bytearray([1, 2, 3])
>>> comm.all_reduce(numbers, "max")
>>> list(numbers)
[1, 2, 3]
>>> comm.close()
"""

import atexit as _atexit
import contextlib as _contextlib
import os as _os
import sys as _sys
import weakref as _weakref
from collections.abc import Callable as _Callable
from typing import Protocol as _Protocol

from . import _ringtree
from ._ringtree import CallStats, Communicator, Info, MessageBatch, Work, __version__
from .errors import (
    ConfigurationError,
    DeadlineError,
    Error,
    JoinError,
    MismatchError,
    PeerLostError,
    ProtocolError,
    UsageError,
)

__all__ = [
    "CallStats",
    "Communicator",
    "ConfigurationError",
    "DeadlineError",
    "Error",
    "Info",
    "JoinError",
    "MessageBatch",
    "MismatchError",
    "PeerLostError",
    "ProtocolError",
    "Store",
    "UsageError",
    "Work",
    "init",
]


class Store(_Protocol):
    """A key-value store that all ranks can access.

    The store must be trusted because rank 0 stores the job's secret in it.
    """

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""

    def get(self, key: str, at_most: float) -> bytes | None:
        """Return the value of `key`, or None if no value is set within `at_most` seconds."""

    def add(self, key: str, amount: int) -> int:
        """Atomically add `amount` to the number under `key` (initially 0) and return the sum."""


def init(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    local: tuple[int, int] | None = None,
    store: Store | None = None,
    rendezvous: str | None = None,
    secret: str | None = None,
    interface: str | None = None,
    transport: str | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Wait until all ranks have joined, and return their communicator.

    If `rank` and `world_size` are omitted, all values come from the launcher, which may be
    `ringtree run`, torchrun, mpirun or srun. If they are passed, the ranks connect either through `store` or
    at `rendezvous`, which is rank 0's "host:port". If neither `secret` nor the environment provides
    a secret, `rendezvous` must be a loopback address.

    `local` is a pair of this process's index on its host and the number of processes on that host.
    `timeout` limits the time, in seconds, that joining and each subsequent call may take. Settings
    from `RINGTREE_` variables apply in both cases, but keyword arguments take precedence.

    Raise UsageError if the arguments are invalid, ConfigurationError if a setting is missing or
    malformed, and JoinError if the ranks cannot be connected in time.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("init requires both rank and world_size, or neither")
    if rank is None:
        if any(
            each is not None for each in (local, store, rendezvous, secret, interface, transport)
        ):
            raise UsageError(
                "init requires rank and world_size if any argument other than timeout is passed"
            )
        return _ringtree.connect_from_env(False, timeout)
    arguments = {
        "rank": rank,
        "world_size": world_size,
        "local": local,
        "store": store,
        "rendezvous": rendezvous,
        "secret": secret,
        "interface": interface,
        "transport": transport,
        "timeout": timeout,
    }
    return _ringtree.connect(arguments)


def _framework_timeout(seconds: float) -> float | None:
    """Return a framework's timeout in seconds, or None if RINGTREE_TIMEOUT_MS replaces it."""
    return None if _os.environ.get("RINGTREE_TIMEOUT_MS", "").strip() else seconds


# Not a WeakSet, whose callback is in Python. If Ctrl-C interrupted the release of a communicator,
# the exception would be raised in the callback, and Python would ignore it there.
_open: set[_weakref.ref[Communicator]] = set()


def _leave_at_exit(comm: Communicator) -> None:
    """Ensure that the new communicator `comm` is closed when this program exits."""
    _open.add(_weakref.ref(comm, _open.discard))


def _abort_because_of(comm: Communicator, error: BaseException | None) -> None:
    """Abort `comm` because of an exception, so that the errors of the other ranks contain it.

    Do nothing if there is no exception, or if it is one that a program raises to end normally.
    """
    if error is None or isinstance(error, (SystemExit, GeneratorExit)):
        return
    line = type(error).__name__
    # The program defines the exception, so even converting it to text may raise an exception.
    with _contextlib.suppress(Exception):
        line = " ".join(f"{line}: {error}".split()).removesuffix(":")
    if len(line) > _LINE_MAX:
        line = line[:_LINE_MAX] + "..."
    line = line.encode(errors="replace").decode()
    # The communicator may be closed, or this process may be a forked child.
    with _contextlib.suppress(UsageError):
        comm.abort(f"rank {comm.rank} raised {line}")


# Functions that run at the exit, after all communicators have been closed.
_at_exit: list[_Callable[[], None]] = []

# Maximum number of characters of an exception that other ranks receive.
_LINE_MAX = 300


@_atexit.register
def _leave() -> None:
    """Close all communicators. Otherwise, other ranks would consider this rank dead.

    If an uncaught exception has ended the program, abort the communicators first. Python keeps this
    exception in sys.last_value. In interactive mode, Python also keeps exceptions there that do not
    end the program.
    """
    is_interactive = hasattr(_sys, "ps1")
    error = None if is_interactive else getattr(_sys, "last_value", None)
    every = [comm for ref in list(_open) if (comm := ref()) is not None]
    # The program is exiting in any case and must close every communicator.
    for comm in every:
        with _contextlib.suppress(KeyboardInterrupt):
            _abort_because_of(comm, error)
    for comm in every:
        with _contextlib.suppress(KeyboardInterrupt):
            comm.close()
    for function in _at_exit:
        with _contextlib.suppress(KeyboardInterrupt):
            function()
    with _contextlib.suppress(KeyboardInterrupt):
        _ringtree.stop_log()


_os.register_at_fork(after_in_child=_ringtree.forked)
