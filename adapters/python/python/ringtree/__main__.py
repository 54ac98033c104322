"""The `ringtree` command with `run`, `bench`, `plan` and `doctor`, also `python -m ringtree`."""

import signal
import sys

from . import _ringtree


def main(arguments=None):
    """Run the command line, or `arguments` if given, and exit with the command's exit code."""
    # Restore the default action of Ctrl-C. `run` handles the signal and stops its ranks first.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    again = sys.executable, ["-m", "ringtree"]
    sys.exit(_ringtree.command(again, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
