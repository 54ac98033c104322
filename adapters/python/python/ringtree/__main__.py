"""The command `ringtree`: `ringtree run`, `bench`, `plan`, `doctor`. Also `python -m ringtree`."""

import signal
import sys

from . import _ringtree


def main(arguments=None):
    """Carries out the command line, or `arguments`, and ends the program with its exit code."""
    # Ctrl-C does to it what it does to any program; `run` catches it and ends its ranks first.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    again = sys.executable, ["-m", "ringtree"]
    sys.exit(_ringtree.command(again, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
