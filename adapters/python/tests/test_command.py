"""Tests the commands `ringtree` and `python -m ringtree`, even in a restricted container."""

import csv
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "ringtree"]
# Like in a container: 64 MiB of shared memory, a read-only file system, and a user who is not root.
NARROW = (
    "mount -t tmpfs -o size=64m tmpfs /dev/shm && mount --rbind / /mnt"
    " && mount -o remount,ro,bind /mnt && chroot /mnt"
    ' setpriv --inh-caps=-all --ambient-caps=-all "$@"'
)
WORK = """
import os, numpy, ringtree
with ringtree.init() as comm:
    for count in (1, 1000, 25 << 18):
        numbers = numpy.full(count, comm.rank + 1, numpy.float32)
        comm.all_reduce(numbers)
        assert (numbers == comm.world_size * (comm.world_size + 1) // 2).all()
print("summed by user", os.getuid())
"""


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def test_run_starts_ranks_and_forwards_their_output():
    end = run(*COMMAND, "run", "--nproc-per-node", "3", "--", sys.executable, "-c", WORK)
    assert end.returncode == 0, end.stderr
    assert end.stdout.count("summed") == 3


def test_run_names_the_failed_rank():
    failing = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)"
    end = run(*COMMAND, "run", "--nproc-per-node", "2", "--", sys.executable, "-c", failing)
    assert end.returncode == 1
    assert "rank 1 exited with code 7" in end.stderr


@pytest.mark.parametrize("module", [["ringtree", "bench"], ["ringtree.bench"]])
def test_bench_starts_its_ranks(module):
    arguments = ["all-reduce", "--ranks", "3", "--sizes", "8,1K", "--iters", "3", "--format", "csv"]
    end = run(sys.executable, "-m", *module, *arguments)
    assert end.returncode == 0, end.stderr
    rows = list(csv.DictReader(end.stdout.splitlines()))
    assert [(row["ranks"], row["bytes"], row["wrong"]) for row in rows] == [
        ("3", "8", "0"),
        ("3", "1024", "0"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["bench", "no-such"], 2, "invalid value 'no-such'"),
        (["run", "--nproc-per-node", "2", "--", "/no/such/program"], 2, "/no/such/program"),
        ([], 2, "missing command"),
    ],
)
def test_error_of_command_is_one_line(arguments, code, expected):
    end = run(*COMMAND, *arguments)
    assert (end.returncode, len(end.stderr.splitlines())) == (code, 1), end.stderr
    assert expected in end.stderr


def test_doctor_says_how_to_get_gpu_support():
    out = run(*COMMAND, "doctor").stdout
    assert "not included in this build or in the Python package; build the command from a" in out


def test_command_and_package_have_the_same_version():
    import ringtree

    assert run(*COMMAND, "--version").stdout == f"ringtree {ringtree.__version__}\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signaled_launcher_leaves_no_rank(sent):
    program = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    command = [*COMMAND, "run", "--nproc-per-node", "2", "--output", "inherit", "--"]
    launcher = subprocess.Popen(
        [*command, sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    ranks = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.send_signal(sent)
    assert launcher.wait(30) != 0
    end = time.monotonic() + 30
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, "a rank is still running"
        time.sleep(0.01)


def narrow(*command):
    return run(
        *["unshare", "--user", "--map-user", "1000", "--map-group", "1000"],
        *["--keep-caps", "--mount", "sh", "-c", NARROW, "sh", *command],
    )


@pytest.mark.skipif(
    not shutil.which("unshare") or narrow("true").returncode != 0,
    reason="this system does not allow the user to create namespaces",
)
def test_ranks_run_in_narrow_container():
    assert narrow("touch", "/tmp/written").returncode != 0
    end = narrow(*COMMAND, "run", "--nproc-per-node", "4", "--", sys.executable, "-c", WORK)
    assert end.returncode == 0, end.stderr
    assert end.stdout.count("summed by user 1000") == 4
