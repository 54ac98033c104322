"""Runs torch's own tests of a backend: `torch_suite_worker.py BACKEND`.

Reads test names from standard input, one per line, and writes the result of each test as a line of
JSON. The output of a test's ranks goes to a file in the directory $LOGS. torch is imported only
once, because the ranks of a test are forked. torch's own runner starts a new process for each.
"""

import json
import multiprocessing
import os
import re
import sys
import time
import unittest
from pathlib import Path

RANKS = 4
# Number of ranks for the tests that torch skips with fewer than eight.
RANKS_OF_MANY = 8
# Matches the last line of a traceback.
RAISED = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Failure|Warning)\b")


class NameOfAny(str):
    """A backend's name that is also equal to "gloo" and "mpi", so that it runs tests that torch
    skips for all backends other than gloo or MPI."""

    names = "gloo", "mpi"

    def __eq__(self, other):
        return other in self.names or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def tests_of_torch(backend):
    """Imports torch's module of tests, which reads the backend's name during the import."""
    from torch.testing._internal.common_distributed import DistTestCases

    variables = os.environ
    if backend != "gloo":
        for names in DistTestCases.backend_feature.values():
            names.add(backend)
        os.environ = {**variables, "BACKEND": NameOfAny(backend)}
    try:
        from torch.testing._internal.distributed import distributed_test
    finally:
        os.environ = variables
    for names in (
        distributed_test.PROFILING_SUPPORTED_BACKENDS,
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        names.append(backend)
    return distributed_test


def cases_of(module):
    """Returns the class and the method of each test by the test's name."""

    class Forked(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Each test needs a new file. torch's processes get it by importing the module again.
            module.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(multiprocessing.get_context("fork").Process)

    found = {}
    classes = [Forked, *(each for each in vars(module).values() if isinstance(each, type))]
    for each in classes:
        if issubclass(each, unittest.TestCase) and each is not module.TestDistBackend:
            for name in unittest.TestLoader().getTestCaseNames(each):
                found[name if each is Forked else f"{each.__name__}.{name}"] = (each, name)
    return found


def reason_of(text):
    """Returns the first exception that a rank reports, as one line."""
    lines = [line for line in text.splitlines() if RAISED.match(line) and " exited " not in line]
    return (lines or text.splitlines() or [""])[0][:300]


def end_of(case, name):
    """Runs a test, with more ranks if it requires them, and returns its result and the reason."""
    os.environ["WORLD_SIZE"] = str(RANKS)
    end = end_with(case, name)
    if end == ("skipped", "Skipped due to small world size."):
        os.environ["WORLD_SIZE"] = str(RANKS_OF_MANY)
        end = end_with(case, name)
    return end


def end_with(case, name):
    """Like `end_of`, but runs the test once with the number of ranks that WORLD_SIZE specifies."""
    result = unittest.TestResult()
    unittest.TestSuite([case(name)]).run(result)
    for text in [text for _, text in result.errors + result.failures]:
        print(text, file=sys.stderr, flush=True)
        return "failed", reason_of(text)
    for _, reason in result.skipped:
        return "skipped", reason
    return "passed", ""


def main(backend):
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(RANKS),
        OMP_NUM_THREADS="1",
        # torch skips the tests that need a file if this is not set.
        INIT_METHOD="file:///nowhere",
    )
    out = os.fdopen(os.dup(1), "w")
    cases = cases_of(tests_of_torch(backend))
    print(json.dumps(list(cases)), file=out, flush=True)
    for line in sys.stdin:
        name = line.strip()
        log = os.open(
            Path(os.environ["LOGS"], f"{name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        began = time.monotonic()
        end, reason = end_of(*cases[name])
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps([name, end, reason, seconds]), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
