"""Writes docs/programs.md from the kept results."""

import re
import textwrap

from catalog import KNOWN, PROGRAMS
from results import TIMED_ROUNDS_MIN, TOLERANCE, TOLERANCE_BF16, outcomes

HEAD = """# What runs on it

The programs on this page use torch or frameworks built on torch. The tool
`adapters/python/run_programs` runs each of them with Gloo and with ringtree, compares the results,
and writes this page. Only the backend differs. The programs are in
[adapters/python/programs](../adapters/python/programs). [Frameworks](from_torch.md#frameworks)
shows how to select ringtree. torchft also needs a class that creates its process groups
([replicas.py](../adapters/python/programs/replicas.py)). [Serving with vLLM](vllm.md) shows how to
serve models.

{summary}

All ranks ran on one machine with {cores} cores. No GPU was used, and stubs replaced torch's GPU
libraries. To run the programs yourself:

```console
$ adapters/python/run_programs                           # all programs, three rounds
$ adapters/python/run_programs --rounds 5 ddp with_ray   # two more rounds of these programs
$ TORCH={other} adapters/python/run_programs --rounds 1   # with another version of torch
$ adapters/python/run_programs --torch-only              # quick check: five torch programs, 2 ranks
```

The tool installs torch, the frameworks and ringtree in the virtual environment
`target/python/programs-torch-VERSION`. To run a single program, activate this environment and
choose a backend:

```console
$ PROGRAM_BACKEND=ringtree torchrun --standalone --nproc-per-node 2 adapters/python/programs/ddp.py
```

For rows marked *group first*, also set `PROGRAM_GROUP=1`. For rows marked *stand-in*, set
`PROGRAM_BACKEND=gloo PROGRAM_LIBRARY=ringtree`, and put `-m ringtree.gloo` before the program.

- *Result*: how the last loss, or another value that must not depend on the backend, compares with
  Gloo's. "Same" means equal bits. A number is the largest relative difference in any round.
  "Differs" means that it exceeds the tolerance, which is {tolerance:g}, or {tolerance_bf16:g} for
  cases that compute in bf16. Adding in a different order causes differences below the tolerance.
  "Fails" means that the case failed with ringtree in at least one round. "Both fail" means that it
  also never passed with Gloo.
- *Passes, Gloo fails*: there is no value from Gloo to compare with. With ringtree, the program's
  checks passed, such as the check that all ranks have the same weights.
- *Time*: ringtree's time per step divided by Gloo's. Below 1, ringtree is faster. In each round,
  rank 0 reports its median step time. The ratio is the median of ringtree's rounds divided by the
  median of Gloo's. If only every second step communicates, two steps are measured together. Each
  rank computes on one thread. The runs alternate between the backends. Each ratio is based on
  {rounds} rounds.
- *Group first*: the program calls `init_process_group` before it uses the framework.
- *Stand-in*: the program asks for "gloo". For ringtree, it is started with `-m ringtree.gloo`.
- *NAME, exit*, in the list of failures: the program failed after its last case.
- An empty result means that the case does not exist with this number of ranks. An empty time means
  that the case was not timed, or that it passed with both backends in fewer than three rounds.
"""
WAYS = {"name": "", "group": " (group first)", "stand-in": " (stand-in)"}


def plain(text):
    """Escapes the characters that have a meaning in Markdown."""
    return re.sub(r"([\\<*_|\[\]`])", r"\\\1", text)


def quoted(text, length=220):
    """Shortens an error, and writes it as code."""
    text = re.sub(r"(\S.{9,90}?: )\1+", r"\1", text).replace("/__w/pytorch/pytorch/", "")
    text = re.sub(r"/\S*/(site-packages/|(?=adapters/python/))", "", text)
    line = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).replace("`", "'").split())
    return f"`{line if len(line) <= length else line[: length - 3] + '...'}`"


def filled(text, indent=""):
    """Breaks the lines of a text."""
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def result_cell(outcome):
    if outcome is None:
        return ""
    if outcome.fail_both:
        return "both fail"
    if outcome.ringtree_fails:
        return "**fails**"
    if outcome.difference is None:
        return "passes, Gloo fails"
    if outcome.differs:
        return "**differs**"
    return f"{outcome.difference:.0e}" if outcome.difference else "same"


def time_cell(outcome):
    return f"{outcome.ratio:.2f}" if outcome is not None and outcome.ratio else ""


def failures_of(outcome):
    """Yields a sentence for each backend that fails."""
    for name, ends in (("Gloo", outcome.gloo), ("ringtree", outcome.ringtree)):
        if ends.failures:
            often = f" ({ends.failures} of {ends.rounds} rounds)" if ends.passes else ""
            is_known = name == "ringtree" and outcome.case in KNOWN
            end = f" The program {KNOWN[outcome.case][1]}." if is_known else ""
            yield f"{name}{often}: {quoted(ends.error)}{end}"
    if outcome.differs:
        yield f"the results differ by {outcome.difference:.1e}"


def list_of_failures(results, sizes):
    """Returns a list of all failures, each with the numbers of ranks at which it occurs."""
    found = {}
    for program, size, outcome in every(results, sizes):
        for sentence in failures_of(outcome):
            name = plain(outcome.case) + WAYS[program.way]
            found.setdefault((name, sentence), []).append(str(size))
    lines = [
        f"- {name}, {' and '.join(at)} ranks, {sentence}" for (name, sentence), at in found.items()
    ]
    return "".join(filled(line, "  ") + "\n" for line in lines)


def rows_of(results, program, sizes):
    """Returns the rows of a program."""
    by_size = {size: outcomes(results, program, size) for size in sizes}
    every = (each for found in by_size.values() for each in found if not each.is_exit)
    cases = dict.fromkeys(each.case for each in every)
    rows = ""
    for case in cases:
        found = [next((e for e in by_size[size] if e.case == case), None) for size in sizes]
        name = plain(case) + WAYS[program.way]
        cells = [*map(result_cell, found), *map(time_cell, found)]
        rows += f"| {name} | {' | '.join(cells)} |\n"
    return rows


def every(results, sizes):
    """Returns all programs, sizes and outcomes."""
    return [
        (program, size, outcome)
        for program in PROGRAMS
        for size in sizes
        for outcome in outcomes(results, program, size)
    ]


def summary(results, sizes):
    """Returns sentences that count the results."""
    ended = [each for *_, each in every(results, sizes)]
    found = [each for each in ended if not each.is_exit]
    both = sum(each.fail_both for each in found)
    failed = sum(each.ringtree_fails for each in found) - both
    passed = [each for each in found if not each.ringtree_fails]
    gained = sum(each.difference is None for each in passed)
    same = sum(each.difference == 0 for each in passed)
    more = sum(each.differs for each in passed)
    close = len(passed) - gained - same - more
    text = (
        f"Of {len(found)} results (one per case and number of ranks), {same} are the same as with "
        f"Gloo, {close} differ by no more than the tolerance, {more} differ by more, {failed} pass "
        f"only with Gloo, {gained} pass only with ringtree, and {both} fail with both."
    )
    return filled(f"{text} {summary_of_times(results, sizes)}")


def summary_of_times(results, sizes):
    """Returns sentences that count the times, and name the cases in which ringtree is slower."""
    timed = [each for each in every(results, sizes) if each[-1].ratio]
    if not timed:
        return ""
    slower = [
        f"{plain(outcome.case)}{WAYS[program.way]}, {size} ranks ({outcome.ratio:.3f})"
        for program, size, outcome in timed
        if round(outcome.ratio, 3) > 1
    ]
    always = sum(outcome.is_always_faster for *_, outcome in timed)
    slower_first = [each for each in timed if round(each[-1].first_ratio, 3) > 1]
    run_again = [each for each in timed if each[-1].rounds_timed > TIMED_ROUNDS_MIN]
    text = f"In {len(timed) - len(slower)} of {len(timed)} timed results, ringtree's median time is "
    text += "at most Gloo's"
    if run_again:
        text += f" ({len(timed) - len(slower_first)} after {TIMED_ROUNDS_MIN} rounds"
        if programs_in(run_again) == programs_in(slower_first):
            text += "; only programs with a case in which ringtree was then slower ran more"
        text += ")"
    text += f". In {always}, ringtree's slowest round is faster than Gloo's fastest."
    return f"{text} ringtree is slower in: {'; '.join(slower)}." if slower else text


def programs_in(outcomes):
    """Returns the programs of outcomes, each with its number of ranks."""
    return {(program, size) for program, size, _ in outcomes}


def with_other_torch(results, sizes):
    """Returns a section about the results with another version of torch."""
    section = f"\n## With torch {results.torch}\n\n{summary(results, sizes)}\n"
    failures = list_of_failures(results, sizes)
    return f"{section}\nFailures:\n\n{failures}" if failures else section


def written(all_results, sizes):
    """Returns the text of the page, from the results with each version of torch, newest first."""
    results, *others = all_results
    timed = [each for *_, each in every(results, sizes) if each.ratio]
    rounds = {each.rounds_timed for each in timed} or {0}
    page = HEAD.format(
        summary=summary(results, sizes),
        tolerance=TOLERANCE,
        tolerance_bf16=TOLERANCE_BF16,
        cores=results.cores,
        rounds=" to ".join(map(str, sorted({min(rounds), max(rounds)}))),
        other=others[0].torch if others else "VERSION",
    )
    head = [f"Result, {size} ranks" for size in sizes] + [f"Time, {size} ranks" for size in sizes]
    table = f"| Program | {' | '.join(head)} |\n|---|{'---|' * len(sizes)}{'--:|' * len(sizes)}\n"
    for package in dict.fromkeys(program.package for program in PROGRAMS):
        rows = ""
        for program in PROGRAMS:
            if program.package == package:
                rows += rows_of(results, program, sizes)
        if rows:
            names = [package, "peft"] if package == "transformers" else [package]
            titles = [f"{name} {results.versions.get(name, '')}" for name in names]
            page += f"\n## {', '.join(titles)}\n\n{table}{rows}"
    if failures := list_of_failures(results, sizes):
        page += f"\n## Failures\n\n{failures}"
    return page + "".join(with_other_torch(other, sizes) for other in others)
