"""Starts programs with a time limit, and stops every process that they leave behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

# The time that torchrun has to stop its processes before they are killed.
GRACE_SECONDS = 10
# Marks all descendants of a run, including those in sessions of their own.
MARK = "PROGRAM_RUN"
VARIABLES = {
    "GLOO_SOCKET_IFNAME": "lo",
    "RINGTREE_INTERFACE": "lo",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def marked(mark):
    """Yields the ids of the processes whose environment contains the mark."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def kill_marked(mark):
    while ids := list(marked(mark)):
        for each in ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)


def run(arguments, ranks, variables, log, seconds):
    """Runs torchrun with these arguments. Returns its exit code and its output.

    After a timeout, the code is None, and the output omits messages about the termination.
    """
    mark = uuid.uuid4().hex
    # torchrun and Ray leave files behind. The name is short, because Ray's sockets are there, too.
    folder = tempfile.TemporaryDirectory(prefix="run", ignore_cleanup_errors=True)
    folders = {"TMPDIR": folder.name, "RAY_TMPDIR": folder.name}
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **VARIABLES, **folders, **variables, MARK: mark},
            start_new_session=True,
        )
    try:
        return process.wait(seconds), log.read_text(errors="replace")
    except subprocess.TimeoutExpired:
        text = log.read_text(errors="replace")
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return None, text
    finally:
        kill_marked(mark)
        process.wait()
        folder.cleanup()


def cause(code, text, seconds):
    """Returns why a program has ended without all of its results."""
    if code is None:
        return f"still running after {seconds} s"
    # torchrun stops the other processes by SIGTERM.
    signals = [each for each in re.findall(r"Signal \d+ \((\w+)\)", text) if each != "SIGTERM"]
    if code and signals:
        return f"exit code {code}; torchrun reports {signals[-1]}"
    # torchrun may have restarted the program after the earlier errors.
    errors = re.findall(r"^(?:\[rank\d+\]: )?(\w+Error: .+)", text, re.MULTILINE)
    said = f"exit code {code}" if code else "no result"
    return f"{said}: {errors[-1]}" if errors else said


def results(text):
    """Returns the results in a program's output: a value and milliseconds, or an error.

    The result of a case that has started but not ended is empty.
    """
    found = {}
    for line in re.finditer(r"(START|RESULT|FAILED) (?=\{)", text):
        # Lines of several ranks can be joined.
        with contextlib.suppress(json.JSONDecodeError):
            entry, _ = json.JSONDecoder().raw_decode(text, line.end())
            if line[1] == "START":
                found.setdefault(entry["case"], {})
            elif line[1] == "FAILED":
                error = {"error": f"{entry['error']} ({entry['at']})"}
                if "error" not in found.get(entry["case"], {}):
                    found[entry["case"]] = error
            elif not found.get(entry["case"]):
                found[entry["case"]] = {"value": entry["value"], "ms": entry["ms"]}
    return found


def run_program(program, backend, ranks, logs, folder):
    """Runs a program. Returns its results by case, and why it failed as a whole, or None."""
    log = logs / f"{program.key.replace(':', '_')}.{ranks}.{backend}.log"
    arguments = program.arguments(backend, folder)
    code, text = run(arguments, ranks, program.variables(backend), log, program.seconds)
    found = results(text)
    is_failed = code != 0 or not found or not all(found.values())
    return {"cases": found, "failure": cause(code, text, program.seconds) if is_failed else None}


@contextlib.contextmanager
def neighbors(count):
    """Runs busy loops of the same priority until the block ends."""
    loop = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()
