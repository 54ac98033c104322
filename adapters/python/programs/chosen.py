"""How the programs of frameworks get the backend, and a check that they use it.

By default, the framework creates the group and gets the name in PROGRAM_BACKEND. If PROGRAM_GROUP
is set, the program creates the group first, and the framework uses it.
"""

import os

import torch
import torch.distributed as dist

import common

IS_FIRST = bool(os.environ.get("PROGRAM_GROUP"))
# With the stand-in for Gloo, the backend's name is "gloo", but the library is ringtree.
LIBRARY = os.environ.get("PROGRAM_LIBRARY", common.BACKEND)


def create_group_if_first():
    if IS_FIRST:
        dist.init_process_group(common.BACKEND)


def check():
    """Raises AssertionError if the default group does not use the chosen library."""
    found = type(dist.group.WORLD._get_backend(torch.device("cpu")))
    name = f"{found.__module__}.{found.__name__}"
    is_right = "ringtree" in name.lower() if LIBRARY == "ringtree" else "Gloo" in name
    assert is_right, f"the group's backend is {name}"
