"""Runs torch's own tests of a backend with Gloo and with ringtree, and lists the results.

A test that passes with Gloo must pass with ringtree, except the tests in torch_suite_known.py. The
list is written to torch_suite.md in the package's directory. The result of each test is kept until
torch or the installed package changes, so that an interrupted run can be continued.
"""

import argparse
import collections
import hashlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from torch_suite_known import KNOWN
from torch_suite_worker import RANKS, RANKS_OF_MANY

HERE = Path(__file__).parent
LIST = HERE.parent / "torch_suite.md"
BACKENDS = "gloo", "ringtree"
# Timeout of a rank that waits for another rank. torch's runner then reports where the rank hangs.
SECONDS_OF_TEST = 100
SECONDS_MAX = 130

HEAD = """# torch's own tests

Results of the backend tests in torch's wheel (`distributed_test` in
`torch.testing._internal.distributed`) with {torch} on CPUs. The tests run with {ranks} processes,
or with {many} if torch requires that many. `adapters/python/run_torch_suite` runs them and writes
this page. With ringtree, it also runs the tests that torch runs only with Gloo or only with MPI.

{counts}
"""


class Worker:
    """A process that runs tests of one backend, started when first needed."""

    def __init__(self, backend, folder):
        self.backend = backend
        self.logs = folder / backend
        self.logs.mkdir(parents=True, exist_ok=True)
        self.process = None
        self.names = []

    def start(self):
        variables = {
            **os.environ,
            "LOGS": str(self.logs),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS_OF_TEST),
        }
        with open(self.logs / "worker.log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "torch_suite_worker.py", self.backend],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                text=True,
                start_new_session=True,
            )
        self.names = self.read(SECONDS_MAX)
        if self.names is None:
            raise SystemExit(f"torch's tests do not start: see {self.logs}/worker.log")

    def read(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        return json.loads(line) if line else None

    def run(self, name):
        """Runs a test and returns its result, the reason and its duration in seconds."""
        if self.process is None:
            self.start()
        print(name, file=self.process.stdin, flush=True)
        found = self.read(SECONDS_MAX)
        # Killing the session also kills ranks that a failed test has left running.
        if found is None or found[1] == "failed":
            self.stop()
        if found is None:
            return "failed", "the ranks hang, or a signal has killed the test", SECONDS_MAX
        return found[1:]

    def stop(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


class Ends:
    """The results of the tests, kept in a file."""

    def __init__(self, path):
        self.path = path
        self.of = json.loads(path.read_text()) if path.exists() else {}
        for backend in BACKENDS:
            version = version_of(backend)
            if self.of.get(backend, {}).get("version") != version:
                self.of[backend] = {"version": version, "ends": {}}

    def note(self, backend, name, end):
        self.of[backend]["ends"][name] = end
        self.path.write_text(json.dumps(self.of, indent=0))

    def get(self, backend, name):
        return self.of[backend]["ends"].get(name)


def version_of(backend):
    """Returns a digest of torch's version and the installed package, on which results depend."""
    digest = hashlib.sha256(torch.__version__.encode())
    if backend == "ringtree":
        folder = Path(importlib.util.find_spec("ringtree").origin).parent
        for file in sorted(folder.glob("*.*")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def fault(name, gloo, ringtree):
    """Returns why a result is not acceptable, or None. `gloo` is None if Gloo has not run it."""
    is_known = name in KNOWN
    if ringtree[0] == "passed":
        return "passes, but is listed in torch_suite_known.py" if is_known else None
    is_fault = ringtree[0] == "failed" if gloo is None else gloo[0] == "passed"
    return ringtree[1] if is_fault and not is_known else None


def plain(text):
    """Escapes the characters that have a meaning in Markdown."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def written(ends, names):
    """Returns the text of torch_suite.md."""
    by_pair, by_reason = collections.defaultdict(list), collections.defaultdict(list)
    for name in names:
        gloo, ringtree = (ends.get(backend, name) for backend in BACKENDS)
        by_pair[gloo[0], ringtree[0]].append((name, gloo, ringtree))
    # The page lists all other results first, then the tests that pass with both, and finally those
    # that both skip, grouped by reason.
    skipped = by_pair.pop(("skipped", "skipped"), [])
    passed = by_pair.pop(("passed", "passed"), [])
    counts = [("passed", "passed", passed), *((*pair, by_pair[pair]) for pair in sorted(by_pair))]
    counts.append(("skipped", "skipped", skipped))
    table = "".join(f"| {gloo} | {ringtree} | {len(some)} |\n" for gloo, ringtree, some in counts)
    page = HEAD.format(
        torch=f"torch {torch.__version__.split('+')[0]}",
        ranks=RANKS,
        many=RANKS_OF_MANY,
        counts=f"| gloo | ringtree | tests |\n|---|---|---|\n{table}",
    )
    for pair in sorted(by_pair):
        page += f"\n## gloo {pair[0]}, ringtree {pair[1]}\n\n"
        for name, gloo, ringtree in sorted(by_pair[pair]):
            why = KNOWN.get(name) or plain(gloo[1] if ringtree[0] == "passed" else ringtree[1])
            page += f"- `{name}`: {why}\n"
    page += "\n## Passed with both\n\n" + "".join(f"- `{one[0]}`\n" for one in sorted(passed))
    page += "\n## Skipped with both\n\n"
    for name, gloo, _ in sorted(skipped):
        by_reason[gloo[1]].append(f"`{name}`")
    for reason in sorted(by_reason):
        page += f"- {plain(reason)}: {', '.join(by_reason[reason])}\n"
    return page


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rerun tests whose names contain one of these")
    parser.add_argument("--subset", action="store_true", help="only ringtree, without the list")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no test after this time")
    parser.add_argument("--folder", type=Path, required=True, help="directory for kept results")
    return parser.parse_args()


def run(options, ends, workers):
    """Runs the selected tests that have no result yet, and returns the names of all tests."""
    began = time.monotonic()
    workers["ringtree"].start()
    names = workers["ringtree"].names
    for name in names:
        is_named = any(part in name for part in options.names)
        for backend, worker in workers.items():
            is_due = is_named or not (options.names or ends.get(backend, name))
            if is_due and time.monotonic() - began < options.seconds:
                end = worker.run(name)
                ends.note(backend, name, end)
                print(backend, name, *end, flush=True)
    return names


def main():
    options = parse()
    # The workers' ranks must not outlive a run that is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options.folder.mkdir(parents=True, exist_ok=True)
    backends = BACKENDS[1:] if options.subset else BACKENDS
    workers = {backend: Worker(backend, options.folder) for backend in backends}
    ends = Ends(options.folder / "ends.json")
    try:
        names = run(options, ends, workers)
    finally:
        for worker in workers.values():
            worker.stop()
    done = [name for name in names if all(ends.get(backend, name) for backend in backends)]
    faults = {}
    for name in done:
        gloo = None if options.subset else ends.get("gloo", name)
        faults[name] = fault(name, gloo, ends.get("ringtree", name))
    for name in done:
        if faults[name]:
            print(f"{name}: {faults[name]}")
    passed = sum(ends.get("ringtree", name)[0] == "passed" for name in done)
    print(f"{len(done)} of {len(names)} tests have run; {passed} pass with ringtree")
    if len(done) == len(names) and not options.subset:
        LIST.write_text(written(ends, names))
    sys.exit(1 if any(faults.values()) or len(done) < len(names) else 0)


if __name__ == "__main__":
    main()
