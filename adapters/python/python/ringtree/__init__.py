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
import weakref as _weakref
from typing import Protocol as _Protocol

from . import _ringtree
from ._ringtree import Communicator, Work
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

__version__ = "0.1.0"

__all__ = [
    "Communicator",
    "ConfigurationError",
    "DeadlineError",
    "Error",
    "JoinError",
    "MismatchError",
    "PeerLostError",
    "ProtocolError",
    "Store",
    "UsageError",
    "Work",
    "init",
]


class Store(_Protocol):
    """A key-value store that all ranks reach. It is trusted: rank 0 puts the job's secret there."""

    def set(self, key: str, value: bytes) -> None:
        """Puts `value` under `key`."""

    def get(self, key: str, at_most: float) -> bytes | None:
        """What is under `key`; if nothing is, waits `at_most` so many seconds, then None."""

    def add(self, key: str, amount: int) -> int:
        """Adds to the number under `key`, which begins as 0; the sum."""


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
    """The communicator of all ranks; waits until they have come.

    Without `rank` and `world_size` all comes from the environment, as `ringtree run` and torchrun
    set it. With them, the ranks meet through `store`, or at `rendezvous` ("host:port" of rank 0)
    with `secret`, without which only loopback is used. `local` is this process's number on its
    host, and how many the host has. `timeout`, in seconds, is how long the start may take, until
    all ranks have come, and later each call. Settings by `RINGTREE_` variables count in both cases,
    where no keyword says something else.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("init takes rank and world_size together, or neither")
    if rank is None:
        if any(
            each is not None for each in (local, store, rendezvous, secret, interface, transport)
        ):
            raise UsageError("init takes these keywords together with rank and world_size")
        return _ringtree.connect_from_env(False, timeout)
    told = {
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
    return _ringtree.connect(told)


_open: _weakref.WeakSet[Communicator] = _weakref.WeakSet()


def _leave_at_exit(comm: Communicator) -> None:
    """Sees that the others are told when this program ends; each communicator that is made does."""
    _open.add(comm)


@_atexit.register
def _leave() -> None:
    """Without a goodbye, ranks that end later would take this one for dead."""
    for comm in list(_open):
        # The program ends anyway, and each of them has to be left.
        with _contextlib.suppress(KeyboardInterrupt):
            comm.close()


_os.register_at_fork(after_in_child=_ringtree.forked)
