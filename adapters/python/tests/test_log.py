"""Tests that events reach Python's logging, or standard error if the program has set up no logging."""

import os
import subprocess
import sys

PROGRAM = """
import logging, sys
if sys.argv[1] == "logged":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(ringtree_rank)s: %(message)s", stream=sys.stdout)
import ringtree
with ringtree.init(rank=0, world_size=1):
    pass
"""


def run(mode, **settings):
    command = [sys.executable, "-c", PROGRAM, mode]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, done.stderr


def test_events_reach_logging():
    stdout, stderr = run("logged", RINGTREE_LOG="info")
    assert stdout.startswith("INFO ringtree 0: rank 0 of 1 joined on ")
    assert stdout.count("\n") == 1 and not stderr


def test_events_are_printed_without_logging():
    stdout, stderr = run("plain", RINGTREE_LOG="info")
    assert stderr.startswith("ringtree: info: rank 0 of 1 joined on ")
    assert stderr.count("\n") == 1 and not stdout


def test_only_warnings_are_printed_by_default():
    assert run("plain") == ("", "")


# The event is still in `logging` when the program ends, and the interpreter exits slowly.
EXITING = """
import array, logging, sys, time
class Slow:
    def __init__(self, action, seconds):
        self.action, self.seconds = action, seconds
    def filter(self, record, sleep=time.sleep):
        sleep(self.seconds)
        return True
    def __del__(self, sleep=time.sleep):
        if self.action == "exit":
            sleep(self.seconds)
logger = logging.getLogger("ringtree")
logger.addHandler(logging.StreamHandler(sys.stdout))
logger.setLevel(logging.INFO)
logger.addFilter(Slow("log", 0.3))
import ringtree
sys.slow = Slow("exit", 1.0)
comm = ringtree.init(rank=0, world_size=1)
comm.close()
"""


def test_program_may_exit_while_an_event_is_logged():
    command = [sys.executable, "-c", EXITING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("rank 0 of 1 joined on ") and not done.stderr
