"""The `ringtree` command, which can also be run as `python -m ringtree`."""

import signal
import sys
from typing import NoReturn

from . import _ringtree


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command with `arguments` or, by default, sys.argv. Exit with its exit code."""
    # Restore the default action of Ctrl-C. `run` handles the signal and stops its ranks first.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    again = sys.executable, ["-m", "ringtree"]
    sys.exit(_ringtree.command(again, sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    main()
