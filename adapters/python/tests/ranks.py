"""Starts programs over several processes, as a launcher does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Everything here ends within seconds; a hang is a failure, and this is when it is called one.
SECONDS_MAX = 240


# What keeps the ports that this process has taken.
_taken = []


def reserved_port():
    """A port of loopback that no other process is given; a rank that is told it can listen there."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    _taken.append(one)
    return one.getsockname()[1]


class Job:
    """A program over `ranks` processes, with torchrun's variables."""

    def __init__(self, program, ranks, *arguments, environment=()):
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
            command = [sys.executable, "-u", HERE / program, *map(str, arguments)]
            pipe = subprocess.PIPE
            self.processes.append(
                subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)
            )

    def end(self):
        """By rank: exit code, what it wrote, and its errors."""
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
    """What each rank wrote, all of which end well."""
    ends = Job(program, ranks, *arguments, **more).end()
    for rank, (code, out, errors) in enumerate(ends):
        assert code == 0, f"rank {rank} ended with {code}:\n{out}\n{errors}"
    return [out for _, out, _ in ends]
