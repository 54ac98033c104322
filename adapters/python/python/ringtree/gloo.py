"""Runs an unmodified program that supports only Gloo, with ringtree instead.

    torchrun --standalone --nproc-per-node 2 -m ringtree.gloo train.py --epochs 3

This module calls `ringtree.torch.stand_in_for_gloo()` and then runs the program. To run a module
instead, use `-m ringtree.gloo -m package.module`. Processes that the program starts, for example
with `torch.multiprocessing.spawn`, use Gloo unless they call `stand_in_for_gloo()`, too.
"""

import os
import runpy
import sys

USAGE = "usage: python -m ringtree.gloo (PROGRAM | -m MODULE) [ARGUMENT...]"


def main():
    """Run the program that the arguments name."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    if len(arguments) <= is_module:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    from .torch import stand_in_for_gloo

    sys.argv = arguments[is_module:]
    stand_in_for_gloo()
    # Python puts the working directory or the program's directory first, unless -P is set.
    if not sys.flags.safe_path:
        program = os.path.dirname(os.path.realpath(sys.argv[0]))
        sys.path[0] = os.getcwd() if is_module else program
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
