#!/usr/bin/env python3
"""Compares a collective of ringtree with Open MPI, MPICH, Gloo and DeepSpeed, on this host.

Every round runs each program once, one after the other, over all sizes. The time of a size is the
median of the rounds. Programs that are not installed are skipped with a message. README.md in this
directory says what to install and how to read the table.

Exit code: 0, 1 (something failed, or computed a wrong result), or 2 (wrong usage).
"""

import argparse
import csv
import io
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RINGTREE = os.path.normpath(os.path.join(HERE, "..", "..", "target", "release", "ringtree"))
OPS = ("all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter")
PEERS = ("openmpi", "openmpi-yield", "mpich", "gloo", "deepspeed")
SPINNING = ("openmpi", "mpich", "deepspeed")
SIZES = "8,1K,16K,256K,1M,4M,25M,64M"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ABSENT = 3  # exit code of torch_peer.py if the library lacks the collective
COMPILE_LIMIT_S = 60
BUILD_LIMIT_S = 300  # PyTorch compiles an extension of DeepSpeed
PROBE_LIMIT_S = 60
TERMINATION_LIMIT_S = 3
# Variables that would make a program act as one rank of a job.
JOB_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RINGTREE_TRANSPORT")
# By default, both MPIs use shared memory between ranks. These settings select TCP instead.
OPENMPI_TCP = "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo".split()
MPICH_TCP = {
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}


class Trouble(Exception):
    """A failure, described in one line."""


class Usage(Trouble):
    """Wrong usage, described in one line."""


class Program:
    """A column of the table: a command and the times that it reported."""

    def __init__(self, name, command, variables=None):
        self.name, self.command, self.variables = name, command, variables or {}
        self.times_us = {}
        self.details = {}
        self.is_out = False

    def note(self, output):
        """Records the times in a program's CSV output. Returns the number of wrong elements."""
        wrong = 0
        # A library may print messages before the table.
        table = output[max(output.find("collective,"), 0):]
        for row in csv.DictReader(io.StringIO(table)):
            try:
                size, time_us = int(row["bytes"]), float(row["time_us"])
                row_wrong = int(row["wrong"])
            except (KeyError, TypeError, ValueError):
                continue  # an incomplete line, or a launcher's message
            wrong += row_wrong
            if row_wrong == 0:
                self.times_us.setdefault(size, []).append(time_us)
                self.details[size] = "{algorithm} {transport}".format_map({**BLANK, **row})
        return wrong

    def median_us(self, size):
        times_us = self.times_us.get(size)
        return statistics.median(times_us) if times_us else None


BLANK = {"algorithm": "", "transport": ""}


def say(line):
    print(f"compare.py: {line}", file=sys.stderr, flush=True)


def last_line(text):
    """Returns the last line that contains text. Launchers draw frames around their messages."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if any(c.isalnum() for c in line)), "no message")


def session_members(session):
    """Returns the processes of a session. Launchers move ranks to new process groups only."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # the process has exited
        if int(fields[3]) == session:
            members.append(int(name))
    return members


def end(process):
    """Ends a program and its children. Sends SIGTERM first, so that launchers can clean up."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(TERMINATION_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass
    for member in session_members(process.pid):
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            pass


def run(command, limit_s, variables=None):
    """Runs a program. Returns its exit code (None if it timed out), output and errors."""
    environment = {k: v for k, v in os.environ.items() if k not in JOB_VARIABLES}
    environment.update(variables or {})
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=errors, env=environment, start_new_session=True)
        except OSError as error:
            raise Trouble(f"cannot start {command[0]}: {error.strerror}") from error
        code = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                end(process)
                process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def parse_size(text):
    number, unit = text.rstrip("KMGkmg"), text.lstrip("0123456789").upper()
    if not number.isdigit() or unit not in UNITS or int(number) == 0:
        raise Usage(f"--sizes: '{text}' is not a size; use sizes such as 8,64K,25M")
    return int(number) * UNITS[unit]


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line."""

    def error(self, message):
        raise Usage(f"{message}; see --help")


def parse(arguments):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ranks", type=int, default=2, metavar="N", help="processes [default: 2]")
    add("--op", choices=OPS, default="all-reduce", metavar="NAME",
        help=f"one of {' '.join(OPS)} [default: all-reduce]")
    add("--sizes", default=SIZES, metavar="LIST",
        help=f"bytes of the complete buffer; K, M, G are powers of 1024 [default: {SIZES}]")
    add("--rounds", type=int, default=5, metavar="R", help="rounds [default: 5]")
    add("--ringtree", default=RINGTREE, metavar="PATH",
        help="the command [default: the repository's target/release/ringtree]")
    add("--transport", choices=("auto", "shm", "tcp"), default="auto", metavar="NAME",
        help="auto, shm or tcp; tcp also applies to the MPIs (Gloo always uses it) "
        "[default: auto]")
    add("--peers", default=None, metavar="LIST",
        help=f"some of {','.join(PEERS)} [default: all, except those that spin if ranks outnumber "
        "cores]")
    add("--python", default=sys.executable, metavar="PATH",
        help="a Python interpreter with PyTorch, for Gloo, and DeepSpeed "
        "[default: the current one]")
    add("--sessions", action="store_true",
        help="start each process in its own session, like torchrun, containers and services")
    add("--limit", type=int, default=120, metavar="SECONDS",
        help="time limit of one program for one round [default: 120]")
    add("--format", choices=("text", "markdown", "csv"), default="text", metavar="NAME",
        help="text, markdown or csv [default: text]")
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.rounds < 1 or options.limit < 1:
        raise Usage("--ranks must be at least 2, --rounds and --limit at least 1")
    sizes = [parse_size(text) for text in options.sizes.split(",")]
    options.sizes = list(dict.fromkeys(sizes))
    options.ringtree = os.path.abspath(options.ringtree)
    if not os.access(options.ringtree, os.X_OK) or os.path.isdir(options.ringtree):
        raise Usage(f"no program at {options.ringtree}; run cargo build --release, or pass "
                    "--ringtree PATH")
    options.peers = chosen_peers(options)
    return options


def chosen_peers(options):
    """Returns the requested peers, or by default those that can be expected to finish."""
    if options.peers is not None:
        peers = list(dict.fromkeys(name for name in options.peers.split(",") if name))
        for name in peers:
            if name not in PEERS:
                raise Usage(f"--peers: unknown peer '{name}'; use some of {','.join(PEERS)}")
        return peers
    cores = len(os.sched_getaffinity(0))
    if options.ranks <= cores:
        return list(PEERS)
    for name in SPINNING:
        say(f"{name}: skipped because its {options.ranks} ranks would spin on {cores} cores; pass "
            f"--peers {name} to try it")
    return [name for name in PEERS if name not in SPINNING]


def ringtree(options):
    sizes = ",".join(map(str, options.sizes))
    command = [options.ringtree, "bench", options.op, "--ranks", str(options.ranks), "--in-place",
               "--transport", options.transport, "--sizes", sizes, "--format", "csv"]
    return Program("ringtree", command + ["--sessions"] * options.sessions)


def compiled_mpi(brand, folder, options):
    """Compiles mpi.c for one MPI. Returns its launcher and the words that start the program."""
    compiler, launcher = shutil.which(f"mpicc.{brand}"), shutil.which(f"mpirun.{brand}")
    if not compiler or not launcher:
        # If the host has no commands with Debian's suffixes, it has only one MPI.
        compiler, launcher = shutil.which("mpicc"), shutil.which("mpirun")
        sign = {"openmpi": ("open mpi", "openrte"), "mpich": ("mpich", "hydra")}[brand]
        told = ""
        if compiler and launcher:
            told = run([launcher, "--version"], PROBE_LIMIT_S)[1].lower()
        if not any(word in told for word in sign):
            raise Trouble("skipped: not installed")
    program = os.path.join(folder, brand)
    source = os.path.join(HERE, "mpi.c")
    command = [compiler, "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", source, "-o", program]
    code, _, errors = run(command, COMPILE_LIMIT_S)
    if code != 0:
        raise Trouble(f"skipped: {compiler} cannot compile mpi.c: {last_line(errors)}")
    return launcher, [*in_session(options), program]


def in_session(options):
    return ["setsid", "--wait"] * options.sessions


def openmpi(options, folder, name):
    launcher, program = compiled_mpi("openmpi", folder, options)
    is_yielding = "1" if name == "openmpi-yield" else "0"
    command = [launcher, "--oversubscribe", "--mca", "mpi_yield_when_idle", is_yielding]
    if options.transport == "tcp":
        command += OPENMPI_TCP
    variables = {}
    if os.geteuid() == 0:
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command += ["-np", str(options.ranks), *program, *task(options)]
    return Program(name, command, variables)


def mpich(options, folder, name):
    launcher, program = compiled_mpi("mpich", folder, options)
    command = [launcher, "-launcher", "fork", "-np", str(options.ranks), *program, *task(options)]
    return Program(name, command, MPICH_TCP if options.transport == "tcp" else {})


def task(options):
    """Returns the arguments of mpi.c."""
    return [str(options.limit), options.op, *map(str, options.sizes)]


def torch_peer(options, _, name):
    python, script = options.python, os.path.join(HERE, "torch_peer.py")
    variables = {"OMP_NUM_THREADS": "1"}
    if name == "gloo":
        probe = "import torch.distributed as found; raise SystemExit(not found.is_available())"
        if run([python, "-c", probe], PROBE_LIMIT_S)[0] != 0:
            raise Trouble(f"skipped: {python} has no PyTorch; pass --python PATH")
    elif options.transport == "tcp":
        raise Trouble("skipped: it communicates only in shared memory")
    else:
        # PyTorch compiles with the command `ninja`, which is next to the environment's interpreter.
        folder = os.path.dirname(os.path.abspath(python))
        variables["PATH"] = folder + os.pathsep + os.environ["PATH"]
        code, _, errors = run([python, script, "build", name], BUILD_LIMIT_S, variables)
        if code != 0:
            raise Trouble(f"skipped: {python} cannot build it: {last_line(errors)}")
    command = [python, script, name, str(options.ranks), options.op, *map(str, options.sizes)]
    if options.sessions:
        variables["SESSIONS"] = "1"
    return Program(name, command, variables)


def found_programs(options, folder):
    """Returns ringtree and the installed peers. Prints a message for each missing peer."""
    programs = [ringtree(options)]
    makers = {"openmpi": openmpi, "openmpi-yield": openmpi, "mpich": mpich,
              "gloo": torch_peer, "deepspeed": torch_peer}
    for name in options.peers:
        try:
            programs.append(makers[name](options, folder, name))
        except Trouble as trouble:
            say(f"{name}: {trouble}")
    return programs


def measure(programs, options):
    """Runs all programs in every round. Returns whether all of them succeeded."""
    is_good = True
    for number in range(1, options.rounds + 1):
        for program in programs:
            if program.is_out:
                continue
            say(f"round {number} of {options.rounds}: {program.name}")
            code, output, errors = run(program.command, options.limit, program.variables)
            wrong = program.note(output)
            if code == 0 and wrong == 0:
                continue
            # Do not run the program again, because it would delay every further round.
            program.is_out = True
            if code == ABSENT:
                say(f"{program.name}: skipped: it has no {options.op}")
                continue
            is_good = False
            if wrong:
                say(f"{program.name}: {wrong} elements are wrong; not run again")
            elif code is None:
                say(f"{program.name}: exceeded {options.limit} s (--limit); not run again")
            else:
                say(f"{program.name}: exit code {code}: {last_line(errors)}; not run again")
    return is_good


class Row:
    """The medians of all programs for one size, the best peer, and ringtree's ratio to it."""

    def __init__(self, programs, size):
        self.size = size
        self.medians_us = [program.median_us(size) for program in programs]
        self.detail = programs[0].details.get(size, "")
        self.best, self.ratio, self.spread = "", None, None
        ours, *theirs = zip(self.medians_us, programs)
        theirs = [(time_us, program.name, program) for time_us, program in theirs if time_us]
        if ours[0] and theirs:
            time_us, self.best, best = min(theirs, key=lambda one: one[:2])
            self.ratio = ours[0] / time_us
            compared = [programs[0].times_us[size], best.times_us[size]]
            self.spread = max(max(times_us) / min(times_us) for times_us in compared)


def number(value):
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 100 else f"{value:.2f}"


def size_text(size):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return str(size)


def table(programs, rows, options):
    """Returns the table in the requested format."""
    names = [program.name for program in programs]
    if options.format == "csv":
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(["op", "ranks", "bytes", "rounds", *(f"{name}_us" for name in names),
                         "best_peer", "ratio", "spread", "algorithm", "transport"])
        for row in rows:
            exact = ["" if value is None else f"{value:.4f}" for value in row.medians_us]
            rates = ["" if value is None else f"{value:.4f}" for value in (row.ratio, row.spread)]
            detail = row.detail.split(" ") if row.detail else ["", ""]
            writer.writerow([options.op, options.ranks, row.size, options.rounds, *exact, row.best,
                             *rates, *detail])
        return output.getvalue().rstrip("\n")
    heads = ["bytes", *names, "best peer", "ratio", "spread", "by"]
    cells = [[size_text(row.size), *map(number, row.medians_us), row.best or "-",
              number(row.ratio), number(row.spread), row.detail] for row in rows]
    if options.format == "markdown":
        rule = ["--:"] * (1 + len(names)) + ["---", "--:", "--:", "---"]
        return "\n".join("| " + " | ".join(line) + " |" for line in [heads, rule, *cells])
    widths = [max(map(len, column)) for column in zip(heads, *cells)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths))
             for line in [heads, *cells]]
    return "\n".join(line.rstrip() for line in lines)


def summary(rows, options):
    ratios = [row.ratio for row in rows if row.ratio]
    rounds = "one round" if options.rounds == 1 else f"medians of {options.rounds} rounds"
    told = (f"{options.op} over {options.ranks} ranks, f32, in place; microseconds per call, "
            f"{rounds}")
    if not ratios:
        return f"{told}; no peer was measured"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (f"{told}; ratio to the best peer: geometric mean {mean:.3f}, "
            f"worst {max(ratios):.3f}")


def compare(options):
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        programs = found_programs(options, folder)
        is_good = measure(programs, options)
    rows = [Row(programs, size) for size in options.sizes]
    is_good = is_good and all(row.medians_us[0] for row in rows)
    print(table(programs, rows, options))
    if options.format == "csv":
        say(summary(rows, options))
    else:
        print(f"\n{summary(rows, options)}")
    return 0 if is_good else 1


def main(arguments):
    # Handle SIGTERM like Control-C, so that it also stops the started programs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return compare(parse(arguments))
    except Trouble as trouble:
        say(trouble)
        return 2 if isinstance(trouble, Usage) else 1
    except KeyboardInterrupt:
        say("interrupted; all started programs have been stopped")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
