"""Measures a collective over processes of this machine, or over those that a launcher has started:

    python -m ringtree.bench all-reduce --ranks 4 --sizes 8,1K,25M

The same as `ringtree bench`: the times are the library's, without Python's part of a call.
"""

import sys

from .__main__ import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
