#!/usr/bin/env python3
"""Checks that ringtree chooses the fastest algorithm, on this host or between emulated hosts.

Measures one tuning table, as a job does when it starts. With that table, times `auto` and every
algorithm with every radix in interleaved rounds. An algorithm is dropped after the first round if
its predicted time exceeds three times the shortest prediction and its measured time is at least
twice the shortest measured time. A size is a miss if the median of `auto` is more than 10 % above
that of the best algorithm, and still is after both have been timed again.

`--network lan1g` (or `wan200m`, or `RATE_MBIT,DELAY_US`) puts each rank on its own host, emulated
by `ringtree-network`. This needs root. Ranks and network share the cores of this machine, which
distorts results with many ranks.

Exit code: 0 (success), 1 (a failure or a wrong result), or 2 (wrong usage).
"""

import argparse
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.normpath(os.path.join(HERE, "..", "..", "target", "release"))
SIZES = "8,1K,16K,64K,256K,1M,4M,16M"
MISS = 1.10
# An algorithm is timed only once if both its predicted and its measured time exceed these multiples
# of the best.
HOPELESS_PREDICTED, HOPELESS_TIMED = 3, 2
# Sizes of at least LONG_BYTES are measured in fewer rounds.
LONG_BYTES, LONG_ROUNDS = 16 << 20, 3
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
POINT = ("op", "network", "ranks", "algorithm", "bytes", "us", "predicted_us")
# Rate of each link in Mbit/s, and delay between two hosts in microseconds.
PROFILES = {"lan1g": (1000, 250), "wan200m": (200, 5000)}


def in_bytes(size):
    """Returns the number of bytes of a size such as 25M."""
    unit = size[-1].upper() if size[-1].isalpha() else ""
    return int(size[: len(size) - len(unit)]) * UNITS[unit]


def calls(options, size_bytes):
    """Returns the number of calls per batch: enough to measure, few enough to keep rounds short."""
    most, least, bytes_a_batch = (20, 1, 4 << 20) if options.network else (2000, 3, 8 << 20)
    return max(least, min(most, bytes_a_batch // (size_bytes + 4096)))


def output(options, command, table=None):
    """Returns the output of a command. Exits if the command fails."""
    variables = dict(os.environ, RINGTREE_TUNING=table) if table else None
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=options.limit, check=False
    )
    if done.returncode != 0:
        sys.exit(f"choice.py: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def started(options):
    """Returns the command that starts the ranks: empty if `ringtree bench` starts them itself."""
    if not options.network:
        return []
    rate, delay_us = options.network
    return [
        options.emulator, "--hosts", str(options.ranks), "--rate", str(rate), "--delay-us",
        str(delay_us), "--congestion-control", options.congestion_control, "--",
    ]  # fmt: skip


def bench(options, size, names, table):
    """Measures the named algorithms, interleaved, in one job.

    Returns, for each name, the time per call in microseconds, the predicted time in microseconds,
    and the algorithm that ran.
    """
    command = started(options) + [options.ringtree, "bench", options.op]
    command += ["--ranks", str(options.ranks), "--transport", options.transport]
    command += ["--algorithm", ",".join(names), "--sizes", size, "--in-place", "--format", "csv"]
    command += ["--iters", str(calls(options, in_bytes(size)))]
    rows = list(csv.DictReader(io.StringIO(output(options, command, table))))
    if len(rows) != len(names) or any(row["wrong"] != "0" for row in rows):
        sys.exit(f"choice.py: {' '.join(command)}: a result is missing or wrong")
    numbers = [(float(row["time_us"]), float(row["predicted_us"]), row["algorithm"]) for row in rows]
    return dict(zip(names, numbers))


def algorithms(options, size):
    """Returns all algorithms and radixes that support the collective at this size."""
    planned = [options.ringtree, "plan", options.op, "--ranks", str(options.ranks)]
    planned += ["--bytes", str(in_bytes(size)), "--format", "json", "--algorithm"]
    rows = [json.loads(line) for line in output(options, planned + ["all"]).splitlines()]
    names = [row["algorithm"] for row in rows if row["why_not"] is None]
    found = list(names)
    for name in names:
        # A name without a radix stands for radix 2.
        for radix in range(3, options.ranks + 1):
            done = subprocess.run(
                planned + [f"{name}/{radix}"], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                break
            if json.loads(done.stdout.splitlines()[0])["why_not"] is None:
                found.append(f"{name}/{radix}")
    return found


def timed(options, size, names, rounds, table):
    """Returns the measured and the predicted times by name, and the algorithm that `auto` chose."""
    times_us, left = {name: [] for name in names}, list(names)
    predictions, chosen = {}, None
    for number in range(rounds):
        # Each round begins with a different algorithm, because the first one runs on idle links.
        left = left[1:] + left[:1]
        for name, (time_us, predicted_us, ran) in bench(options, size, left, table).items():
            times_us[name].append(time_us)
            predictions[name] = predicted_us
            chosen = ran if name == "auto" else chosen
        if number == 0:
            hopeless_us = HOPELESS_PREDICTED * min(predictions.values())
            slow_us = HOPELESS_TIMED * min(times[0] for times in times_us.values())
            left = [
                name
                for name in left
                if name == "auto" or predictions[name] <= hopeless_us or times_us[name][0] < slow_us
            ]
    return times_us, predictions, chosen


def judge(options, size, table):
    """Prints one row of the table. Returns whether the choice is a miss."""
    rounds = options.rounds if in_bytes(size) < LONG_BYTES else min(options.rounds, LONG_ROUNDS)
    names = algorithms(options, size) + ["auto"]
    times_us, predictions, chosen = timed(options, size, names, rounds, table)
    best, ratio = compared(times_us)
    repeated = ""
    if ratio > MISS:
        again_us, _, chosen = timed(options, size, ["auto", best], rounds, table)
        repeated = f"{ratio:.2f} before"
        times_us.update(again_us)
        ratio = statistics.median(again_us["auto"]) / statistics.median(again_us[best])
    is_miss = ratio > MISS
    print(
        f"{size:>6} {chosen:>20} {statistics.median(times_us['auto']):12.2f} {best:>20}"
        f" {statistics.median(times_us[best]):12.2f}"
        f" {max(times_us[best]) / min(times_us[best]):7.2f} {ratio:6.2f}"
        f" {'miss' if is_miss else ''} {repeated}".rstrip(),
        flush=True,
    )
    if options.every:
        rows = sorted((statistics.median(times), name) for name, times in times_us.items())
        print("       " + "  ".join(f"{name} {time_us:.0f}" for time_us, name in rows), flush=True)
    if options.points:
        write_points(options, size, times_us, predictions)
    return is_miss


def write_points(options, size, times_us, predictions):
    """Appends a line per algorithm to the file that `--points` names, for predicted.py."""
    is_new = not os.path.exists(options.points)
    with open(options.points, "a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(POINT)
        job = [options.op, "/".join(map(str, options.network or ["host"])), options.ranks]
        for name, times in times_us.items():
            point = [name, in_bytes(size), f"{statistics.median(times):.1f}", predictions[name]]
            writer.writerow(job + point)


def compared(times_us):
    """Returns the name of the best algorithm, and the factor by which `auto` is slower."""
    medians = {name: statistics.median(times) for name, times in times_us.items()}
    auto_us = medians.pop("auto")
    best = min(medians, key=medians.get)
    return best, auto_us / medians[best]


def network(text):
    """Returns the rate and delay of a profile, or of RATE_MBIT,DELAY_US."""
    if text in PROFILES:
        return PROFILES[text]
    rate, delay_us = text.split(",")
    return float(rate), int(delay_us)


def main():
    """Parses the arguments and checks every size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--op", default="all-reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--network", type=network, help="lan1g, wan200m, or RATE_MBIT,DELAY_US")
    parser.add_argument("--congestion-control", default="cubic", help="for --network")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--every", action="store_true", help="print the times of all algorithms")
    parser.add_argument("--points", help="append all medians and predictions to this CSV file")
    parser.add_argument("--limit", type=float, default=120, help="time limit per job, in seconds")
    parser.add_argument("--table", help="file to keep the tuning table in; a new one by default")
    parser.add_argument(
        "--ringtree", default=os.path.join(BUILT, "ringtree"), help="the program to measure"
    )
    parser.add_argument("--emulator", default=os.path.join(BUILT, "ringtree-network"))
    options = parser.parse_args()
    names = ("bytes", "chosen", "us", "best", "us", "spread", "ratio")
    print("{:>6} {:>20} {:>12} {:>20} {:>12} {:>7} {:>6}".format(*names))
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.abspath(options.table or os.path.join(folder, "tuning.json"))
        sizes = options.sizes.split(",")
        misses = sum(judge(options, size, table) for size in sizes)
    print(f"{misses} of {len(sizes)} sizes missed")


if __name__ == "__main__":
    main()
