"""Runs the cases of a program and prints the result of each for the test that started it."""

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
    """Checks that `act` raises a usage error of class `kind` whose single line contains `words`."""
    try:
        act()
    except kind as error:
        assert words in str(error) and "\n" not in str(error), error
        assert isinstance(error, ringtree.UsageError), type(error)
    else:
        raise AssertionError(f"no error was raised; expected: {words}")


def check(found, ranks):
    """Checks that a case has succeeded on all ranks."""
    assert sorted(found) == list(range(ranks))
    for rank, end in found.items():
        assert end == "ok", f"rank {rank}: {end}"


def ends(outputs):
    """Returns the results of each case by rank."""
    found = {}
    for out in outputs:
        for line in out.splitlines():
            if line.startswith("case "):
                name, rank, end = json.loads(line[len("case ") :])
                found.setdefault(name, {})[rank] = end
    return found
