"""The "ringtree" backend for torch.distributed. torch finds it by name, without an import.

Import this module to use `communicator(group)`, which returns the communicator behind a process
group, `all_reduce_(tensor)`, which is faster for small calls than going through torch's dispatch,
`new_backend(store, rank, size, timeout)`, which connects processes outside the default group, and
`stand_in_for_gloo()`, which lets programs that know only Gloo use ringtree.
"""

import re
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

TORCH_MIN = (2, 14)
_FOUND = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])

if _FOUND >= TORCH_MIN:
    from ._backend import new_backend
    from ._direct import all_reduce_, communicator
elif not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            _require_torch()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["all_reduce_", "communicator", "new_backend", "register", "stand_in_for_gloo"]


def register() -> None:
    """Register the backend. torch calls this function when the backend's name is first used.

    Raise ImportError if torch is too old.
    """
    _register("ringtree")


def stand_in_for_gloo() -> None:
    """Let the name "gloo" select ringtree in this process.

    Some frameworks accept only a fixed list of backend names, and use "gloo" on CPUs. Call this
    function before the framework creates a process group. Groups that already exist are unchanged.
    New groups with the name "gloo" then accept only CPU tensors, whereas Gloo also accepts CUDA
    tensors. To run a program without changes, use `python -m ringtree.gloo` instead.

    Raise ImportError if torch is too old.
    """
    _register("gloo")


def _require_torch():
    if _FOUND < TORCH_MIN:
        raise ImportError(
            "ringtree's backend for torch.distributed needs torch 2.14 or later, which supports "
            f"backends in Python; torch {torch.__version__} is installed"
        )


def _register(name):
    _require_torch()
    from . import _backend

    dist.Backend.register_backend(name, _backend.create, extended_api=True, devices=["cpu"])
