"""Keeps the results in a file, and compares those of ringtree with those of Gloo."""

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from catalog import GLOO, KNOWN, PACKAGES, RINGTREE

HERE = Path(__file__).resolve().parent
# Reductions in bf16 in another order differ by less than this.
TOLERANCE = 5e-5
# Fewer rounds say too little about a ratio of times.
TIMED_ROUNDS_MIN = 3


def versions():
    """Returns the versions of the packages, and digests of ringtree and of the programs."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    ringtree = Path(importlib.util.find_spec("ringtree").origin).parent
    programs = HERE.parent.glob("*.py")
    return {**found, "ringtree": digest(ringtree.glob("*.*")), "programs": digest(programs)}


def digest(files):
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()


class Results:
    """The runs of each program. A run belongs to a number of ranks, a round and a backend."""

    def __init__(self, path):
        self.path = path
        self.kept = json.loads(path.read_text()) if path.exists() else {}

    def expect(self, versions):
        """Discards the kept runs if they used other versions."""
        if self.kept.get("versions") != versions:
            self.kept = {"versions": versions, "runs": {}}

    @property
    def versions(self):
        return self.kept.get("versions", {})

    @property
    def torch(self):
        """The version of torch."""
        return self.versions["torch"]

    def runs(self, program, ranks):
        return self.kept["runs"].setdefault(program.key, {}).setdefault(str(ranks), {})

    def forget(self, program, ranks):
        self.runs(program, ranks).clear()

    def add(self, program, ranks, at, backend, run):
        self.runs(program, ranks).setdefault(str(at), {})[backend] = run
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.kept, indent=0))
        partial.replace(self.path)

    def has(self, program, ranks, at, backend):
        return backend in self.runs(program, ranks).get(str(at), {})


@dataclass
class Outcome:
    """A case of a program: the errors of both backends, the difference and the ratio of times."""

    case: str
    gloo_error: str | None = None
    error: str | None = None
    difference: float = 0.0
    ratio: float | None = None
    milliseconds: float | None = None

    @property
    def is_fault(self):
        """Whether only ringtree fails or differs although no reason is known, or no longer does."""
        is_worse = self.error is not None or self.differs
        return self.gloo_error is None and is_worse != (self.case in KNOWN)

    @property
    def differs(self):
        return self.difference > TOLERANCE


def difference(first, second):
    """Returns 0 for equal values, the relative difference of numbers, and otherwise infinity."""
    if first == second:
        return 0.0
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        found = abs(first - second) / max(abs(first), abs(second))
        return found if math.isfinite(found) else math.inf
    return math.inf


def ends_of(rounds, backend, case):
    """Returns how a case has ended in each round: a value or an error."""
    found = []
    for each in rounds:
        run = each.get(backend)
        if run is not None:
            missing = {"error": run["failure"] or "no result"}
            found.append(run["cases"].get(case, missing))
    return found


def outcome(rounds, case):
    both = {backend: ends_of(rounds, backend, case) for backend in (GLOO, RINGTREE)}
    errors = {
        backend: next((end["error"] for end in ends if "error" in end), None)
        for backend, ends in both.items()
    }
    found = Outcome(case, errors[GLOO], errors[RINGTREE])
    if found.gloo_error or found.error:
        return found
    pairs = zip(both[GLOO], both[RINGTREE])
    differences = [difference(one["value"], other["value"]) for one, other in pairs]
    found.difference = max(differences, default=0.0)
    times = [[end["ms"] for end in ends if end["ms"]] for ends in both.values()]
    if min(map(len, times)) >= TIMED_ROUNDS_MIN:
        gloo, found.milliseconds = map(statistics.median, times)
        found.ratio = found.milliseconds / gloo
    return found


def outcomes(results, program, ranks):
    """Returns the outcomes of a program's cases in the rounds that both backends have run."""
    runs = results.runs(program, ranks)
    rounds = [runs[at] for at in sorted(runs, key=int) if len(runs[at]) == 2]
    cases = {}
    for each in rounds:
        for backend in (GLOO, RINGTREE):
            cases.update(dict.fromkeys(each[backend]["cases"]))
    found = [outcome(rounds, case) for case in cases]
    failures = {
        backend: next((e[backend]["failure"] for e in rounds if e[backend]["failure"]), None)
        for backend in (GLOO, RINGTREE)
    }
    # A program that has failed after its last case, or before its first.
    if any(each.gloo_error for each in found):
        failures[GLOO] = None
    if any(each.error for each in found):
        failures[RINGTREE] = None
    if any(failures.values()):
        found.append(Outcome(f"{program.file}, exit", failures[GLOO], failures[RINGTREE]))
    return found
