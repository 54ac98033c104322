#!/usr/bin/env python3
"""Runs the commands in README.md's console blocks, as a reader would, and compares their output.

A line `...` in the README matches any lines, and `…` matches any text within a line. A command without
output in the README must only succeed. Prints the duration of each command, and stops at the first failure.
"""
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent


def commands(readme):
    """Returns pairs of a command and the lines of output that follow it."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", readme, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def pattern(expected):
    lines = [".*" if line == "..." else re.escape(line).replace("…", "[^\n]*") for line in expected]
    return re.compile("\n".join(lines).replace("\n.*\n", "\n(?:.*\n)?"), re.S)


def main():
    for command, expected in commands((ROOT / "README.md").read_text(encoding="utf-8")):
        print(f"\n==> {command}", flush=True)
        began = time.monotonic()
        # Only standard output is compared, because progress goes to standard error.
        run = subprocess.run(command, shell=True, cwd=ROOT, text=True,
                             stdout=subprocess.PIPE if expected else None)
        if expected:
            print(run.stdout, end="")
        print(f"==> {time.monotonic() - began:.0f} s: {command}", flush=True)
        if run.returncode != 0:
            print(f"README.md: exit code {run.returncode}: {command}")
            return 1
        printed = "\n".join(line.rstrip() for line in (run.stdout or "").splitlines())
        if expected and not pattern(expected).fullmatch(printed.strip("\n")):
            print(f"README.md shows a different output of this command: {command}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
