"""Starts programs with several processes, like a launcher."""

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Every program exits within seconds. A program that runs longer than this hangs and has failed.
SECONDS_MAX = 240


# Sockets that reserve ports for this process.
_reserved = []


def reserved_port():
    """Reserves a loopback port for a rank to listen at. No other process is assigned this port."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    _reserved.append(one)
    return one.getsockname()[1]


class Job:
    """A program that runs as `ranks` processes with the variables that torchrun sets.

    `before` contains Python's options, such as those that run a module with the program.
    """

    def __init__(self, program, ranks, *arguments, environment=(), before=()):
        port = str(reserved_port())
        self.processes = []
        for rank in range(ranks):
            variables = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
                **dict(environment),
            }
            command = [sys.executable, "-u", *before, HERE / program, *map(str, arguments)]
            pipe = subprocess.PIPE
            self.processes.append(
                subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)
            )

    def end(self):
        """Returns exit code, standard output and standard error of each rank, indexed by rank."""
        ends = []
        try:
            for process in self.processes:
                out, errors = process.communicate(timeout=SECONDS_MAX)
                ends.append((process.returncode, out, errors))
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return ends


def run(program, ranks, *arguments, **more):
    """Runs a program that succeeds on all ranks and returns the output of each rank."""
    ends = Job(program, ranks, *arguments, **more).end()
    for rank, (code, out, errors) in enumerate(ends):
        assert code == 0, f"rank {rank} exited with {code}:\n{out}\n{errors}"
    return [out for _, out, _ in ends]
