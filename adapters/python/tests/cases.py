"""Runs the cases of a program, and says of each how it ended, for the test that started it."""

import json
import traceback

import ringtree


def run_all(cases, rank):
    for name, case in cases.items():
        try:
            case()
            end = "ok"
        except Exception:
            end = traceback.format_exc()
        print("case " + json.dumps([name, rank, end]), flush=True)


def refused(kind, words, act):
    """Check that `act` raises a usage error of the class `kind`, with `words` in its one line."""
    try:
        act()
    except kind as error:
        assert words in str(error) and "\n" not in str(error), error
        assert isinstance(error, ringtree.UsageError), type(error)
    else:
        raise AssertionError(f"nothing was refused; expected: {words}")


def ends(outputs):
    """By case, what each rank said of it."""
    found = {}
    for out in outputs:
        for line in out.splitlines():
            if line.startswith("case "):
                name, rank, end = json.loads(line[len("case ") :])
                found.setdefault(name, {})[rank] = end
    return found
