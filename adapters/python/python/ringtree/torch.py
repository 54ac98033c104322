"""The "ringtree" backend for torch.distributed. torch finds it by name, without an import.

Import this module to use `communicator(group)`, which returns the communicator behind a process
group, and `all_reduce_(tensor)`, which is faster for small calls than going through torch's
dispatch.
"""

import re

import torch
import torch.distributed as dist

TORCH_MIN = (2, 14)
_FOUND = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])

if _FOUND >= TORCH_MIN:
    from ._direct import all_reduce_, communicator

    __all__ = ["all_reduce_", "communicator", "register"]


def register() -> None:
    """Register the backend. torch calls this function when the backend's name is first used.

    Raise ImportError if torch is too old.
    """
    if _FOUND < TORCH_MIN:
        raise ImportError(
            f"ringtree needs torch 2.14 or later, which supports backends in Python, but torch "
            f"{torch.__version__} is installed"
        )
    from . import _backend

    dist.Backend.register_backend("ringtree", _backend.create, extended_api=True, devices=["cpu"])
