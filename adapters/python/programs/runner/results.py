"""Keeps the results in a file, and compares those of ringtree with those of Gloo."""

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from catalog import BACKENDS, BF16, GLOO, KNOWN, PACKAGES, RINGTREE

HERE = Path(__file__).resolve().parent
# Values differ by less than this if only the order of additions differs.
TOLERANCE, TOLERANCE_BF16 = 1e-6, 5e-5
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
    programs = [*HERE.parent.glob("*.py"), HERE / "catalog.py", HERE / "processes.py"]
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
        """Discards the kept runs if they used other versions or another number of cores.

        Returns True if none are left.
        """
        cores = len(os.sched_getaffinity(0))
        if (self.kept.get("versions"), self.kept.get("cores")) != (versions, cores):
            self.kept = {"versions": versions, "cores": cores, "runs": {}}
        return not self.kept["runs"]

    @property
    def versions(self):
        return self.kept.get("versions", {})

    @property
    def torch(self):
        """The version of torch."""
        return self.versions["torch"]

    @property
    def cores(self):
        """The number of cores on which the programs ran."""
        return self.kept["cores"]

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
class Ends:
    """The number of rounds of a case with a backend, and the error of each failure."""

    rounds: int = 0
    errors: list = field(default_factory=list)

    @property
    def failures(self):
        return len(self.errors)

    @property
    def error(self):
        """The first error, or None."""
        return self.errors[0] if self.errors else None

    @property
    def passes(self):
        """True if the case has passed in some round."""
        return self.failures < self.rounds

    def add(self, error):
        self.rounds += 1
        self.errors += [] if error is None else [error]


@dataclass
class Outcome:
    """A case of a program: its ends, the largest difference and the ratios of times.

    If `is_exit` is true, this is not a case but the end of the program after its last case.
    """

    case: str
    gloo: Ends = field(default_factory=Ends)
    ringtree: Ends = field(default_factory=Ends)
    # The number of rounds in which only ringtree failed.
    losses: int = 0
    # None if there is no round in which the case passed with both backends.
    difference: float | None = None
    # The ratio of the median times, and whether every round was faster than all of Gloo's.
    ratio: float | None = None
    # The ratio after the first rounds, which are as many as a ratio needs.
    first_ratio: float | None = None
    rounds_timed: int = 0
    is_always_faster: bool = False
    is_exit: bool = False

    @property
    def is_fault(self):
        """True if only ringtree fails or differs, or if it does not fail as KNOWN says."""
        if self.case in KNOWN:
            error, _ = KNOWN[self.case]
            is_known = all(error in each for each in self.ringtree.errors)
            return self.differs or not (self.ringtree_fails and is_known)
        return bool(self.losses or self.differs)

    @property
    def ringtree_fails(self):
        """True if ringtree failed in some round, or before it reached the case."""
        return self.ringtree.failures > 0 or not self.ringtree.rounds

    @property
    def fail_both(self):
        return self.ringtree_fails and not self.gloo.passes

    @property
    def differs(self):
        return (self.difference or 0) > (TOLERANCE_BF16 if self.case in BF16 else TOLERANCE)


def difference(first, second):
    """Returns 0 for equal values, the relative difference of numbers, and otherwise infinity."""
    if first == second:
        return 0.0
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        found = abs(first - second) / max(abs(first), abs(second))
        return found if math.isfinite(found) else math.inf
    return math.inf


def end_of(run, case, cases):
    """Returns how a case has ended in a run: a value or an error. Returns None if it was not run.

    The first case without a result is the one in which the program failed.
    """
    missing = [each for each in cases if not run["cases"].get(each)]
    if missing and missing[0] == case:
        return {"error": run["failure"] or "no result"}
    return run["cases"].get(case) or None


def outcome(rounds, case, cases):
    """Returns the outcome of a case in the rounds that both backends have run."""
    found = Outcome(case)
    times = []
    for each in rounds:
        ends = [end_of(each[backend], case, cases) for backend in BACKENDS]
        for of_backend, end in zip((found.gloo, found.ringtree), ends):
            if end is not None:
                of_backend.add(end.get("error"))
        gloo, ringtree = (end or {} for end in ends)
        is_loss = "value" in gloo or ("error" in ringtree and "error" not in gloo)
        found.losses += "value" not in ringtree and is_loss
        if "value" in gloo and "value" in ringtree:
            now = difference(gloo["value"], ringtree["value"])
            found.difference = max(found.difference or 0.0, now)
            if gloo["ms"] and ringtree["ms"]:
                times.append((gloo["ms"], ringtree["ms"]))
    if len(times) >= TIMED_ROUNDS_MIN:
        gloo, ringtree = zip(*times)
        found.ratio = ratio_of(times)
        found.first_ratio = ratio_of(times[:TIMED_ROUNDS_MIN])
        found.rounds_timed = len(times)
        found.is_always_faster = max(ringtree) < min(gloo)
    return found


def ratio_of(times):
    """Returns the ratio of ringtree's median time to Gloo's."""
    gloo, ringtree = map(statistics.median, zip(*times))
    return ringtree / gloo


def exit_outcome(rounds, name, cases):
    """Returns how a program ended after its last case, in the rounds in which no case failed."""
    found = Outcome(f"{name}, exit", is_exit=True)
    for each in rounds:
        errors = {}
        for backend, of_backend in zip(BACKENDS, (found.gloo, found.ringtree)):
            run = each[backend]
            if all("value" in run["cases"].get(case, {}) for case in cases):
                errors[backend] = run["failure"]
                of_backend.add(run["failure"])
        found.losses += bool(errors.get(RINGTREE)) and not errors.get(GLOO)
    return found


def outcomes(results, program, ranks):
    """Returns the outcomes of a program's cases, and of its end if it has failed there."""
    runs = results.runs(program, ranks)
    rounds = [runs[at] for at in sorted(runs, key=int) if len(runs[at]) == len(BACKENDS)]
    cases = dict.fromkeys(
        case for each in rounds for backend in BACKENDS for case in each[backend]["cases"]
    )
    name = " ".join(filter(None, (program.file, program.case)))
    if rounds and not cases:
        cases = {name: None}
    found = [outcome(rounds, case, cases) for case in cases]
    ended = exit_outcome(rounds, name, cases)
    if ended.gloo.failures or ended.ringtree.failures:
        found.append(ended)
    return found
