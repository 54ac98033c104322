"""Runs a program that can only use Gloo over ringtree, without changes.

    torchrun --nproc-per-node 2 -m ringtree.gloo train.py --epochs 3

This module calls `ringtree.torch.stand_in_for_gloo()` and then runs the program. `-m ringtree.gloo
-m package.module` runs a module.
"""

import os
import runpy
import sys


def main():
    """Run the program that the arguments name."""
    from .torch import stand_in_for_gloo

    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if len(arguments) <= is_module:
        sys.exit("usage: python -m ringtree.gloo (PROGRAM | -m MODULE) [ARGUMENT...]")
    sys.argv = arguments[is_module:]
    stand_in_for_gloo()
    if is_module:
        # Like `python -m`, which adds the working directory.
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        # Like Python, which adds the program's directory.
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
