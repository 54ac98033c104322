"""Runs programs of other projects with Gloo and ringtree, and compares the results.

Results are kept, so that the next run continues an interrupted one. They are discarded if a
package's version, the installed ringtree or a program changes.
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
from results import Results, outcomes, versions

HERE = Path(__file__).resolve().parent.parent
PAGE = HERE.parents[2] / "docs" / "programs.md"


def parse():
    parser = argparse.ArgumentParser(prog="run_programs", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rerun only these programs (NAME or NAME:WAY)")
    parser.add_argument("--rounds", type=int, default=1, help="runs with each backend (default 1)")
    parser.add_argument("--ranks", default="2,4", help="numbers of processes (default 2,4)")
    parser.add_argument("--torch-only", action="store_true", help="a short check without a page")
    parser.add_argument("--neighbors", type=int, default=0, help="number of busy loops meanwhile")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--no-page", action="store_true", help="do not write the page")
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {name for each in PROGRAMS for name in (each.file, each.key)}
    if unknown := set(options.names) - known:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; known: {sorted(known)}")
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
        cells = [page.result_cell(each), page.time_cell(each), each.gloo_error, each.error]
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
            if options.names or options.torch_only:
                results.forget(program, ranks)
            found = run_rounds(options, results, program, ranks)
            if options.torch_only and not found:
                faults.append(f"{program.key}: no results")
            faults += [f"{program.key}, {ranks} ranks: {e.case}" for e in found if e.is_fault]
            if options.torch_only:
                faults += [f"{program.key}: {e.case}: both fail" for e in found if both_fail(e)]
    return faults


def both_fail(outcome):
    return outcome.gloo_error is not None and outcome.error is not None


def kept_results(folder):
    """Returns the results with each version of torch, newest first.

    Omits results of other programs or of another ringtree than the newest ones.
    """
    found = [Results(file) for file in folder.glob("results_[0-9]*.json")]
    numbers = [[int(word) for word in re.findall(r"\d+", each.torch)] for each in found]
    found = [each for _, each in sorted(zip(numbers, found), key=itemgetter(0), reverse=True)]
    same = itemgetter("ringtree", "programs")
    return [each for each in found if same(each.versions) == same(found[0].versions)]


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
        results.expect(used)
        with processes.neighbors(options.neighbors):
            faults = run_all(options, results)
    if not (options.no_page or options.torch_only or options.neighbors):
        results = kept_results(options.folder)
        if not results:
            sys.exit("run_programs: no results are kept; run the programs first")
        PAGE.write_text(page.written(results, options.sizes))
    if faults:
        print("Other than expected, only ringtree fails or its result differs from Gloo's:")
        print("".join(f"  {fault}\n" for fault in faults), end="")
        sys.exit(1)


main()
