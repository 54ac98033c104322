"""Runs programs built on torch with Gloo and with ringtree, and compares their results.

Results are kept, so that the next run continues an interrupted one. They are discarded if the
version of a package, the installed ringtree, a program or the number of cores changes.
"""

import argparse
import re
import signal
import sys
from operator import itemgetter
from pathlib import Path

import page
import processes
from catalog import BACKENDS, PROGRAMS, TORCH_ONLY
from results import TIMED_ROUNDS_MIN, Results, outcomes, versions

HERE = Path(__file__).resolve().parent.parent
PAGE = HERE.parents[2] / "docs" / "programs.md"
SIZES = (2, 4)


def parse():
    parser = argparse.ArgumentParser(prog="run_programs", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="programs, such as ddp, powersgd:f32 or with_trainer:group"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=TIMED_ROUNDS_MIN,
        help="total rounds, including kept ones (default %(default)s, the minimum for times)",
    )
    parser.add_argument("--ranks", default="2,4", help="numbers of processes (default 2,4)")
    parser.add_argument(
        "--torch-only", action="store_true", help="five torch programs once, 2 ranks, no page"
    )
    parser.add_argument(
        "--neighbors", type=int, default=0, help="busy loops to run alongside; no page"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page from the kept results, run nothing"
    )
    parser.add_argument("--no-page", action="store_true", help="do not write the page")
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {name for each in PROGRAMS for name in (each.file, each.key)}
    if unknown := set(options.names) - known:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; known: {sorted(known)}")
    if options.torch_only and options.names:
        parser.error("--torch-only selects the programs; do not name others")
    options.sizes = [int(word) for word in options.ranks.split(",")]
    if options.torch_only:
        options.sizes, options.rounds = [2], 1
    return options


def selected(options):
    if options.torch_only:
        return [program for program in PROGRAMS if program.file in TORCH_ONLY]
    names = options.names
    return [each for each in PROGRAMS if not names or {each.file, each.key} & set(names)]


def show(program, ranks, found):
    for each in found:
        cells = [page.result_cell(each), page.time_cell(each), each.gloo.error, each.ringtree.error]
        text = " | ".join(cell for cell in cells if cell)
        print(f"{program.key}, {ranks} ranks | {each.case} | {text}", flush=True)


def run_rounds(options, results, program, ranks):
    logs = options.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for at in range(options.rounds):
        for backend in BACKENDS if at % 2 == 0 else reversed(BACKENDS):
            if not results.has(program, ranks, at, backend):
                run = processes.run_program(program, backend, ranks, logs, HERE)
                results.add(program, ranks, at, backend, run)
    found = outcomes(results, program, ranks)
    show(program, ranks, found)
    return found


def run_all(options, results):
    """Runs the selected programs. Returns the cases in which only ringtree fails or differs."""
    faults = []
    for program in selected(options):
        for ranks in options.sizes:
            if options.torch_only:
                results.forget(program, ranks)
            found = run_rounds(options, results, program, ranks)
            faults += [f"{program.key}, {ranks} ranks: {e.case}" for e in found if e.is_fault]
            if options.torch_only:
                faults += [f"{program.key}: {e.case}: both fail" for e in found if e.fail_both]
    return faults


def kept_results(folder):
    """Returns the results with each version of torch, newest first.

    Exits if a page cannot be made of them.
    """
    found = [Results(file) for file in folder.glob("results_[0-9]*.json")]
    if not found:
        sys.exit("run_programs: no results are kept; run the programs first")
    numbers = [[int(word) for word in re.findall(r"\d+", each.torch)] for each in found]
    found = [each for _, each in sorted(zip(numbers, found), key=itemgetter(0), reverse=True)]
    same = itemgetter("ringtree", "programs")
    for each in found:
        if same(each.versions) != same(found[0].versions):
            sys.exit(
                "run_programs: the kept results come from different versions of ringtree or of the "
                "programs; run all programs again, or delete the older file of "
                f"{each.path} and {found[0].path}"
            )
    for each in found:
        for program in PROGRAMS:
            if not all(outcomes(each, program, size) for size in SIZES):
                sys.exit(
                    f"run_programs: the page is not written, because {program.key} lacks results "
                    f"with torch {each.torch} for some numbers of ranks; run all programs, or pass "
                    "--no-page"
                )
    if not any(outcome.ratio for *_, outcome in page.every(found[0], SIZES)):
        sys.exit(
            f"run_programs: the page is not written, because {found[0].path} has no times; pass "
            f"--rounds {TIMED_ROUNDS_MIN}, or --no-page"
        )
    return found


def main():
    options = parse()
    # Exit through the code that stops the programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.folder.mkdir(parents=True, exist_ok=True)
    faults = []
    if not options.page:
        used = versions()
        name = "torch_only" if options.torch_only else "results"
        name += f"_neighbors_{options.neighbors}" if options.neighbors else ""
        results = Results(options.folder / f"{name}_{used['torch']}.json")
        is_whole = not options.names and set(options.sizes) >= set(SIZES)
        is_partial = not (is_whole or options.torch_only)
        if results.expect(used) and is_partial and results.path.exists():
            sys.exit(
                f"run_programs: {results.path} has results from other versions or another number "
                "of cores, which this run would discard; run all programs, or delete the file"
            )
        with processes.neighbors(options.neighbors):
            faults = run_all(options, results)
    if faults:
        print("Unexpected results:")
        print("".join(f"  {fault}\n" for fault in faults), end="", flush=True)
    if not (options.no_page or options.torch_only or options.neighbors):
        PAGE.write_text(page.written(kept_results(options.folder), SIZES))
    sys.exit(bool(faults))


main()
