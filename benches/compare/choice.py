#!/usr/bin/env python3
"""Whether ringtree's choice of an algorithm is the best one, on this host.

Writes one tuning table, as a job measures it when it starts, and by that table times every algorithm
of a collective at every size, round after round. A size's choice is a miss if its median is above
the best one's by more than 10 % and above that one's slowest round as well.

Exit code: 0, 1 (something failed, or computed a wrong result), or 2 (wrong usage).
"""

import argparse
import csv
import io
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RINGTREE = os.path.normpath(os.path.join(HERE, "..", "..", "target", "release", "ringtree"))
SIZES = "8,1K,16K,64K,256K,1M,4M,16M"
MISS = 1.10
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def in_bytes(size):
    """The bytes that a size such as 25M stands for."""
    unit = size[-1].upper() if size[-1].isalpha() else ""
    return int(size[: len(size) - len(unit)]) * UNITS[unit]


def calls(size_bytes):
    """Calls a batch: enough to count, few enough that every algorithm has its turn soon."""
    return max(3, min(2000, (8 << 20) // (size_bytes + 4096)))


def bench(options, size, algorithm, table):
    """The rows that one job prints."""
    command = [options.ringtree, "bench", options.op, "--ranks", str(options.ranks)]
    command += ["--transport", options.transport, "--algorithm", algorithm, "--sizes", size]
    command += ["--in-place", "--iters", str(calls(in_bytes(size))), "--format", "csv"]
    variables = dict(os.environ, RINGTREE_TUNING=table)
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=options.limit, check=False
    )
    if done.returncode != 0:
        sys.exit(f"choice.py: {' '.join(command)}: {done.stderr.strip()}")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def judge(options, size, table):
    """One line of the table; whether the choice is a miss."""
    chosen = bench(options, size, "auto", table)[0]["algorithm"]
    times_us = {}
    for _ in range(options.rounds):
        for row in bench(options, size, "all", table):
            times_us.setdefault(row["algorithm"], []).append(float(row["time_us"]))
    medians = {name: statistics.median(times) for name, times in times_us.items()}
    best = min(medians, key=medians.get)
    ratio = medians[chosen] / medians[best]
    is_miss = ratio > MISS and medians[chosen] > max(times_us[best])
    print(
        f"{size:>6} {chosen:>20} {medians[chosen]:12.2f} {best:>20} {medians[best]:12.2f}"
        f" {max(times_us[best]) / min(times_us[best]):7.2f} {ratio:6.2f} {'miss' if is_miss else ''}",
        flush=True,
    )
    return is_miss


def main():
    """Parses the arguments and judges every size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--op", default="all-reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=120, help="seconds a job may take")
    parser.add_argument("--ringtree", default=RINGTREE, help="the program to measure")
    options = parser.parse_args()
    names = ("bytes", "chosen", "us", "best", "us", "spread", "ratio")
    print("{:>6} {:>20} {:>12} {:>20} {:>12} {:>7} {:>6}".format(*names))
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "tuning.json")
        sizes = options.sizes.split(",")
        misses = sum(judge(options, size, table) for size in sizes)
    print(f"{misses} of {len(sizes)} sizes missed")


if __name__ == "__main__":
    main()
