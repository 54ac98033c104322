"""Tests how ranks end: errors that name the rank and the call, interrupts, restarts, exits."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import HERE, Job, reserved_port, run


def fields(out):
    """Returns the class and the fields of the printed error, and its text."""
    lines = [line.split("|") for line in out.splitlines() if "|" in line]
    return lines[0], lines[-1][1]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_error_names_killed_rank(how):
    ends = Job("ends.py", 4, "killed", how).end()
    assert ends[1][0] == -signal.SIGKILL
    for rank in (0, 2, 3):
        code, out, errors = ends[rank]
        assert code == 0, errors
        (kind, _, peer, operation, sequence, _), text = fields(out)
        assert (kind, peer) == ("PeerLostError", "1"), out
        assert (operation, sequence) == ("all-reduce", "2"), out
        assert "rank 1 is gone" in text


def test_killed_rank_ends_training():
    ends = Job("ends.py", 2, "killed_in_training").end()
    code, out, errors = ends[0]
    assert code == 0, errors
    assert out.splitlines()[0].startswith("text|") and "PeerLostError: rank 1 is gone" in out
    # torch turns the error of a bucket into a RuntimeError. The communicator keeps the original.
    real, *_, text = out[out.index("\nPeerLostError|") :].strip().splitlines()
    assert out.count("\n" + real) == 2 and real.startswith("PeerLostError|0|1|"), out
    assert text.startswith("text|rank 1 is gone")


def test_mismatch_error_quotes_both_calls():
    for out in run("ends.py", 2, "mismatched"):
        (kind, *_), text = fields(out)
        assert kind == "MismatchError"
        assert "3 f32" in text and "4 f32" in text


def test_handler_cannot_wait_for_interrupted_call():
    assert "usage error" in run("ends.py", 2, "handler_waits_for_interrupted_call")[0]


def test_timeout_error_names_late_rank():
    out = run("ends.py", 2, "late")[0]
    (kind, _, _, operation, _, missing), text = fields(out)
    assert (kind, operation, missing) == ("DeadlineError", "all-reduce", "(1,)"), text


@pytest.mark.parametrize("where", ["in a call", "waiting", "future", "leaving"])
def test_interrupt_ends_wait(where):
    ends = Job("ends.py", 3, "interrupted", where).end()
    assert "KeyboardInterrupt" in ends[0][1], ends[0]
    for rank in (1, 2):
        (kind, _, peer, *_), text = fields(ends[rank][1])
        assert (kind, peer) == ("PeerLostError", "0")
        assert "the user interrupted rank 0" in text


WAITS = ["started", "queued", "timed", "batch", "recv_any", "sendrecv", "value", "values"]


@pytest.mark.parametrize("where", WAITS)
def test_interrupt_ends_wait_without_torch(where):
    ends = Job("ends.py", 2, "interrupted_without_torch", where).end()
    assert "KeyboardInterrupt" in ends[0][1], ends[0]
    (kind, _, peer, *_), text = fields(ends[1][1])
    assert (kind, peer) == ("PeerLostError", "0"), ends[1]
    assert "interrupted" in text


@pytest.mark.parametrize("how", ["default", "handler"])
@pytest.mark.parametrize("where", ["communicator", "work"])
def test_interrupt_in_release_is_raised_afterward(where, how):
    ends = Job("ends.py", 2, "interrupted_in_release", where, how).end()
    raised = "LookupError" if how == "handler" else "KeyboardInterrupt"
    assert ends[0][1] == raised + "\n", ends[0]
    (kind, _, peer, *_), text = fields(ends[1][1])
    assert (kind, peer) == ("PeerLostError", "0"), ends[1]
    assert "interrupted" in text


def test_interrupt_ends_init():
    job = Job("ends.py", 1, "interrupted_in_init", environment={"WORLD_SIZE": "2"})
    code, out, errors = job.end()[0]
    assert code == 0 and "KeyboardInterrupt" in out, errors


def test_init_and_destroy_a_hundred_times():
    """Also checks that no threads or descriptors leak."""
    for out in run("ends.py", 2, "repeated_init", 100):
        numbers = out.split()
        assert int(numbers[1]) < 40 and int(numbers[3]) < 60, out


@pytest.mark.parametrize("how", ["slow", "fast"])
def test_program_can_exit_without_destroying_groups(how):
    for out in run("ends.py", 2, "exits_without_destroy", how):
        assert out == ""


def test_exit_without_close_notifies_other_ranks():
    _, text = fields(run("ends.py", 2, "exits_without_close")[0])
    assert "rank 1 left" in text


@pytest.mark.parametrize("how", ["close", "exit"])
def test_started_send_completes_before_rank_leaves(how):
    run("ends.py", 2, "sends_before_exit", how)


@pytest.mark.parametrize("how", ["raises_with_handle", "raises_while_thread_waits"])
def test_uncaught_exception_of_waiting_program_reaches_other_ranks(how):
    ends = Job("ends.py", 2, how).end()
    assert ends[1][0] == 1 and "KeyError: 'my bug'" in ends[1][2]
    (kind, _, peer, *_), text = fields(ends[0][1])
    assert (kind, peer) == ("PeerLostError", "1"), ends[0]
    assert "rank 1 raised KeyError: 'my bug'" in text


def test_profiled_calls_may_complete_in_any_order():
    run("ends.py", 2, "profiles_many_calls")


def test_works_can_be_dropped_in_flight():
    run("ends.py", 2, "drops_works_in_flight")


def test_forked_child_exits_without_harm():
    run("ends.py", 2, "forked")


def test_forked_child_trains_in_its_own_group():
    run("ends.py", 1, "forked_child_trains")


def test_exception_with_calls_in_flight_reaches_other_ranks():
    ends = Job("ends.py", 2, "raises_with_calls_in_flight").end()
    assert ends[1][0] == 1 and "no such sample" in ends[1][2]
    (kind, _, peer, *_), text = fields(ends[0][1])
    assert (kind, peer) == ("PeerLostError", "1"), ends[0]
    assert "rank 1 raised ValueError: no such sample" in text


HOW = {
    "plain": "rank 1 raised KeyError: 'my bug'",
    "long": "rank 1 raised ValueError: my bug my bug ",
    "unprintable": "rank 1 raised Unprintable",
    "exit": "rank 1 left",
}


def check_others(ends, how):
    for rank in (0, 2):
        code, out, errors = ends[rank]
        assert code == 0, errors
        (kind, _, peer, *_), text = fields(out)
        assert (kind, peer) == ("PeerLostError", "1"), out
        assert HOW[how] in text and len(text) < 400, text


@pytest.mark.parametrize("how", HOW)
def test_exception_in_with_statement_reaches_other_ranks(how):
    ends = Job("ends.py", 3, "raised_in_with", how).end()
    assert ends[1][:2] == (0, "text|own\n"), ends[1]
    check_others(ends, how)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("through", ["torch", "ringtree"])
def test_uncaught_exception_reaches_other_ranks(how, through):
    ends = Job("ends.py", 3, "raised_uncaught", how, through).end()
    code, out, _ = ends[1]
    assert (code, out) == ((3, "") if how == "exit" else (1, "text|own hook\n")), ends[1]
    check_others(ends, how)


def test_exception_in_interactive_mode_is_not_reported():
    ends = Job("ends.py", 3, "raised_uncaught", "plain", "interactive").end()
    assert "own hook" in ends[1][1], ends[1]
    check_others(ends, "exit")


def test_error_of_unsupported_call_is_one_line():
    for out in run("ends.py", 2, "invalid_calls"):
        lines = out.splitlines()
        words = ["an empty message", "avg of bool", "band", "moved"]
        assert len(lines) == len(words)
        for line, word in zip(lines, words):
            assert word in line, line


def weights(text):
    return {line.split("weights ")[1] for line in text.splitlines() if "weights " in line}


def test_torchrun():
    command = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2"]
    end = subprocess.run(
        [*command, HERE / "ends.py", "trained"], capture_output=True, text=True, timeout=120
    )
    assert end.returncode == 0, end.stderr
    assert end.stdout.count("weights") == 2 and len(weights(end.stdout)) == 1


def test_ringtree_run():
    launcher = Path(sys.executable).with_name("ringtree")
    command = [launcher, "run", "--nproc-per-node", "2", "--", sys.executable, HERE / "ends.py"]
    end = subprocess.run([*command, "trained"], capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stdout + end.stderr
    assert end.stdout.count("weights") == 2 and len(weights(end.stdout)) == 1, end.stdout


def test_error_of_old_torch_is_one_line():
    store = f"init_method='tcp://127.0.0.1:{reserved_port()}', rank=0, world_size=1"
    start = f"import torch.distributed as it; it.init_process_group('ringtree', {store})"
    for line in start, "from ringtree.torch import all_reduce_":
        program = f"import torch; torch.__version__ = '2.13.1'\n{line}"
        end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert end.returncode == 1
        last = end.stderr.strip().splitlines()[-1]
        assert "needs torch 2.14 or later" in last and "2.13.1" in last
