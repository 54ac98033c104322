#!/usr/bin/env python3
"""Runs the commands in README.md's console blocks, as a reader types them, and compares their output.

A line `...` in the README stands for any lines, and `…` for any text within a line. A command without
output in the README must only succeed. Prints how long each took; fails with the first that differs.
"""
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent


def commands(readme):
    """Pairs of a command and the lines of output that follow it."""
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
        # Progress goes to standard error; what a reader is shown is standard output.
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
            print(f"README.md shows another output than this one: {command}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
