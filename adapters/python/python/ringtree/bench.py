"""Measure a collective between processes on this machine, or between a launcher's processes:

    python -m ringtree.bench all-reduce --ranks 4 --sizes 8,1K,25M

This is the same as `ringtree bench`. The times do not include the time that calls spend in Python.
"""

import sys

from .__main__ import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
