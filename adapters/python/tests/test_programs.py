"""Tests how `run_programs` compares results, and what it writes on the page."""

import json
import sys

import pytest

from ranks import HERE

sys.path.insert(0, str(HERE.parent / "programs" / "runner"))
import catalog  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402

PROGRAM = catalog.PROGRAMS[0]


def ended(value=None, ms=None, error=None):
    return {"error": error} if error else {"value": value, "ms": ms}


def run(cases, failure=None):
    """A run of a program. A case without a result has started and not ended."""
    return {"cases": cases, "failure": failure}


def kept(tmp_path, *rounds):
    """Returns results with these rounds, each a run with Gloo and one with ringtree."""
    runs = {str(at): dict(zip(catalog.BACKENDS, each)) for at, each in enumerate(rounds)}
    path = tmp_path / "results.json"
    versions = {"torch": "2.15.0", "ringtree": "", "programs": ""}
    contents = {"versions": versions, "cores": 2, "runs": {PROGRAM.key: {"2": runs}}}
    path.write_text(json.dumps(contents))
    return results.Results(path)


def only(found):
    (each,) = results.outcomes(found, PROGRAM, 2)
    return each


@pytest.mark.parametrize(
    "gloo, ringtree, cell",
    [
        (ended(1.0), ended(1.0), "same"),
        (ended(1.0), ended(1.0 + 5e-7), "5e-07"),
        (ended(1.0), ended(1.0 + 2e-6), "**differs**"),
        (ended([1, 2]), ended([2, 1]), "**differs**"),
        (ended(1.0), ended(float("nan")), "**differs**"),
        (ended(1.0), ended(error="E: bad"), "**fails**"),
        (ended(error="E: bad"), ended(1.0), "passes, Gloo fails"),
        (ended(error="E: bad"), ended(error="E: bad"), "both fail"),
    ],
)
def test_case(tmp_path, gloo, ringtree, cell):
    outcome = only(kept(tmp_path, [run({"c": gloo}), run({"c": ringtree})]))
    assert page.result_cell(outcome) == cell
    assert outcome.is_fault == (cell in ("**differs**", "**fails**"))


def test_tolerance_of_bf16(tmp_path):
    case = catalog.BF16[0]
    found = kept(tmp_path, [run({case: ended(1.0)}), run({case: ended(1.0 + 2e-6)})])
    assert page.result_cell(only(found)) == "2e-06" and not only(found).is_fault


def test_failure_in_one_of_several_rounds(tmp_path):
    good, bad = run({"c": ended(1.0)}), run({"c": ended(error="E: bad")})
    outcome = only(kept(tmp_path, [good, good], [good, bad]))
    assert page.result_cell(outcome) == "**fails**" and outcome.is_fault
    outcome = only(kept(tmp_path, [good, good], [bad, good]))
    assert page.result_cell(outcome) == "same" and not outcome.is_fault


def test_program_that_ends_within_a_case(tmp_path):
    """The case without a result fails with the program's failure, and a later one has not run."""
    gloo = run({"first": ended(1.0), "second": ended(2.0), "third": ended(3.0)})
    ringtree = run({"first": ended(1.0), "second": {}}, failure="killed")
    first, second, third = results.outcomes(kept(tmp_path, [gloo, ringtree]), PROGRAM, 2)
    assert not first.is_fault and second.is_fault and third.is_fault
    assert second.ringtree.errors == ["killed"] and third.ringtree.rounds == 0


def test_program_that_ends_before_its_first_case(tmp_path):
    found = kept(tmp_path, [run({}, "killed"), run({}, "killed")])
    assert only(found).fail_both and not only(found).is_fault


def test_failure_after_the_last_case(tmp_path):
    good, bad = run({"c": ended(1.0)}), run({"c": ended(1.0)}, failure="SIGABRT")
    case, exit = results.outcomes(kept(tmp_path, [good, bad]), PROGRAM, 2)
    assert exit.is_exit and exit.is_fault and not case.is_fault
    case, exit = results.outcomes(kept(tmp_path, [bad, good]), PROGRAM, 2)
    assert exit.is_exit and not exit.is_fault


@pytest.mark.parametrize("case", catalog.KNOWN)
def test_known_failure(tmp_path, case):
    """A known failure is a fault if its error is different, or if the case passes."""
    error, _ = catalog.KNOWN[case]
    gloo = run({case: ended(1.0)})
    for end in ended(error=f"E: {error}"), ended(error="E"), ended(1.0):
        is_known = error in end.get("error", "")
        assert only(kept(tmp_path, [gloo, run({case: end})])).is_fault != is_known


def test_times(tmp_path):
    """A ratio needs three rounds. The page names the cases in which ringtree is slower."""
    times = (10, 12), (11, 11), (9, 13)
    rounds = [[run({"c": ended(1, gloo)}), run({"c": ended(1, own)})] for gloo, own in times]
    assert only(kept(tmp_path, *rounds[:2])).ratio is None
    found = kept(tmp_path, *rounds)
    assert page.time_cell(only(found)) == "1.20" and not only(found).is_always_faster
    assert "In 0 of 1 timed results" in page.summary_of_times(found, [2])
    assert "slower in: c, 2 ranks (1.200)." in page.summary_of_times(found, [2])
    more = [run({"c": ended(1, 20)}), run({"c": ended(1, 10)})]
    text = page.summary_of_times(kept(tmp_path, *rounds, *4 * [more]), [2])
    assert "In 1 of 1 timed" in text and "(0 after 3 rounds; only programs" in text
    rounds = [[run({"c": ended(1, own)}), run({"c": ended(1, own / 2)})] for _, own in times]
    found = kept(tmp_path, *rounds)
    assert page.time_cell(only(found)) == "0.50" and only(found).is_always_faster
    # Every program was run again, not only one with a slower case.
    text = page.summary_of_times(kept(tmp_path, *rounds, rounds[0]), [2])
    assert "(1 after 3 rounds)." in text
    text = page.summary_of_times(found, [2])
    assert "In 1 of 1 timed" in text and "In 1, ringtree's" in text
    assert "slower in" not in text


def test_results_of_other_versions_are_discarded(tmp_path):
    found = kept(tmp_path, [run({"c": ended(1.0)}), run({"c": ended(1.0)})])
    same = dict(found.versions)
    found.kept["cores"] = len(results.os.sched_getaffinity(0))
    assert not found.expect(same) and results.outcomes(found, PROGRAM, 2)
    assert found.expect({**same, "ringtree": "other"}) and not results.outcomes(found, PROGRAM, 2)


def test_paths_of_this_machine_are_not_on_the_page():
    assert page.quoted("E: (/a/b/adapters/python/x.py:4)") == "`E: (adapters/python/x.py:4)`"
    assert page.quoted("E: (/a/site-packages/torch/x.py:4)") == "`E: (torch/x.py:4)`"
