"""The backend "ringtree" of torch.distributed: found by its name, nothing need be imported.

Imported, it offers what torch has no name for: `communicator(group)`, what is behind a process
group, and `all_reduce_(tensor)`, for calls so small that torch's dispatch counts.
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
    """Makes the backend known; torch calls this when the name is first used."""
    if _FOUND < TORCH_MIN:
        raise ImportError(
            f"ringtree needs torch 2.14 or later, which can call a backend written in Python; "
            f"this is torch {torch.__version__}"
        )
    from . import _backend

    dist.Backend.register_backend("ringtree", _backend.create, extended_api=True, devices=["cpu"])
