#!/usr/bin/env python3
"""Whether ringtree's choice of an algorithm is the best one, on this host or between emulated ones.

Writes one tuning table, as a job measures it when it starts, and by that table times `auto` and
every algorithm with every radix, in turns, round after round. What the table predicts to take three
times as long as the best, and takes at least twice as long in the first round, is timed once. A
size's choice is a miss if its median is above the best one's by more than 10 %, and is again when
these two have been timed anew.

`--network lan1g` (or `wan200m`, or `RATE_MBIT,DELAY_US`) has the ranks on hosts that
`ringtree-network` emulates, one each, which needs root. Their ranks and the network share this
machine's cores: the numbers of many ranks tell of that, too.

Exit code: 0, 1 (something failed, or computed a wrong result), or 2 (wrong usage).
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
# Predicted and timed above these multiples of the best: timed once.
HOPELESS_PREDICTED, HOPELESS_TIMED = 3, 2
# From here on a median is of fewer rounds.
LONG_BYTES, LONG_ROUNDS = 16 << 20, 3
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
POINT = ("op", "network", "ranks", "algorithm", "bytes", "us", "predicted_us")
# Mbit/s, microseconds from one host to another.
PROFILES = {"lan1g": (1000, 250), "wan200m": (200, 5000)}


def in_bytes(size):
    """The bytes that a size such as 25M stands for."""
    unit = size[-1].upper() if size[-1].isalpha() else ""
    return int(size[: len(size) - len(unit)]) * UNITS[unit]


def calls(options, size_bytes):
    """Calls a batch: enough to count, few enough that every algorithm has its turn soon."""
    most, least, bytes_a_batch = (20, 1, 4 << 20) if options.network else (2000, 3, 8 << 20)
    return max(least, min(most, bytes_a_batch // (size_bytes + 4096)))


def output(options, command, table=None):
    """What a command prints; the program ends if it fails."""
    variables = dict(os.environ, RINGTREE_TUNING=table) if table else None
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=options.limit, check=False
    )
    if done.returncode != 0:
        sys.exit(f"choice.py: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def started(options):
    """What starts the ranks: nothing on this host, where `ringtree bench` does it."""
    if not options.network:
        return []
    rate, delay_us = options.network
    return [
        options.emulator, "--hosts", str(options.ranks), "--rate", str(rate), "--delay-us",
        str(delay_us), "--congestion-control", options.congestion_control, "--",
    ]  # fmt: skip


def bench(options, size, names, table):
    """By name: microseconds a call, those predicted, and what ran. One job measures them in turns."""
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
    """All that can carry out the collective on so many bytes, with all radixes."""
    planned = [options.ringtree, "plan", options.op, "--ranks", str(options.ranks)]
    planned += ["--bytes", str(in_bytes(size)), "--format", "json", "--algorithm"]
    rows = [json.loads(line) for line in output(options, planned + ["all"]).splitlines()]
    names = [row["algorithm"] for row in rows if row["why_not"] is None]
    found = list(names)
    for name in names:
        # Radix 2 is what a name without one stands for.
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
    """Times by name, of so many rounds in turns; those predicted; and what `auto` is."""
    times_us, left = {name: [] for name in names}, list(names)
    predictions, chosen = {}, None
    for number in range(rounds):
        # Each round begins with another one: what comes first finds links that have idled.
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
    """One line of the table; whether the choice is a miss."""
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
    """Appends a line for each algorithm to the file of points, which predicted.py draws."""
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
    """The best algorithm by name, and how many times its median `auto`'s is."""
    medians = {name: statistics.median(times) for name, times in times_us.items()}
    auto_us = medians.pop("auto")
    best = min(medians, key=medians.get)
    return best, auto_us / medians[best]


def network(text):
    """The rate and the delay of a profile, or of RATE_MBIT,DELAY_US."""
    if text in PROFILES:
        return PROFILES[text]
    rate, delay_us = text.split(",")
    return float(rate), int(delay_us)


def main():
    """Parses the arguments and judges every size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--op", default="all-reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--network", type=network, help="lan1g, wan200m, or RATE_MBIT,DELAY_US")
    parser.add_argument("--congestion-control", default="cubic", help="TCP's, in --network")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--every", action="store_true", help="print the times of all algorithms")
    parser.add_argument("--points", help="a CSV file to which all medians and predictions go")
    parser.add_argument("--limit", type=float, default=120, help="seconds a job may take")
    parser.add_argument("--table", help="a tuning table to keep; without it a new one is measured")
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
