"""The command of the wheel: `ringtree` and `python -m ringtree`, and what narrow containers allow."""

import csv
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "ringtree"]
# As a container: shared memory of 64 MiB, nothing that can be written, and a user who is not root.
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


def ended(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def test_ranks_are_started_and_their_output_is_passed_on():
    end = ended(*COMMAND, "run", "--nproc-per-node", "3", "--", sys.executable, "-c", WORK)
    assert end.returncode == 0, end.stderr
    assert end.stdout.count("summed") == 3


def test_a_rank_that_fails_is_named():
    failing = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)"
    end = ended(*COMMAND, "run", "--nproc-per-node", "2", "--", sys.executable, "-c", failing)
    assert end.returncode == 1
    assert "rank 1 exited with code 7" in end.stderr


@pytest.mark.parametrize("module", [["ringtree", "bench"], ["ringtree.bench"]])
def test_the_benchmark_starts_its_own_ranks(module):
    arguments = ["all-reduce", "--ranks", "3", "--sizes", "8,1K", "--iters", "3", "--format", "csv"]
    end = ended(sys.executable, "-m", *module, *arguments)
    assert end.returncode == 0, end.stderr
    rows = list(csv.DictReader(end.stdout.splitlines()))
    assert [(row["ranks"], row["bytes"], row["wrong"]) for row in rows] == [
        ("3", "8", "0"),
        ("3", "1024", "0"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["bench", "no-such"], 2, "invalid value 'no-such'"),
        (["run", "--nproc-per-node", "2", "--", "/no/such/program"], 2, "/no/such/program"),
        ([], 2, "missing command"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, code, says):
    end = ended(*COMMAND, *arguments)
    assert (end.returncode, len(end.stderr.splitlines())) == (code, 1), end.stderr
    assert says in end.stderr


def test_the_doctor_says_where_gpu_support_is():
    out = ended(*COMMAND, "doctor").stdout
    assert "not included in this build or in the Python package; build the command from a" in out


def test_the_package_has_its_version():
    import ringtree

    assert ended(*COMMAND, "--version").stdout == f"ringtree {ringtree.__version__}\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_ended_leaves_no_rank(sent):
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
        assert time.monotonic() < end, "a rank is left"
        time.sleep(0.01)


def narrow(*command):
    return ended(
        *["unshare", "--user", "--map-user", "1000", "--map-group", "1000"],
        *["--keep-caps", "--mount", "sh", "-c", NARROW, "sh", *command],
    )


@pytest.mark.skipif(
    not shutil.which("unshare") or narrow("true").returncode != 0,
    reason="this system does not let the user make namespaces",
)
def test_a_narrow_container_is_enough():
    assert narrow("touch", "/tmp/written").returncode != 0
    end = narrow(*COMMAND, "run", "--nproc-per-node", "4", "--", sys.executable, "-c", WORK)
    assert end.returncode == 0, end.stderr
    assert end.stdout.count("summed by user 1000") == 4
