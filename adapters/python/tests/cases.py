"""Runs the cases of a program, and says of each how it ended, for the test that started it."""

import json
import traceback


def run_all(cases, rank):
    for name, case in cases.items():
        try:
            case()
            end = "ok"
        except Exception:
            end = traceback.format_exc()
        print("case " + json.dumps([name, rank, end]), flush=True)


def ends(outputs):
    """By case, what each rank said of it."""
    found = {}
    for out in outputs:
        for line in out.splitlines():
            if line.startswith("case "):
                name, rank, end = json.loads(line[len("case ") :])
                found.setdefault(name, {})[rank] = end
    return found
