"""Tests the torch.distributed backend with two and four processes."""

import functools
import subprocess
import sys

import odd_cases
import pytest
import service_cases
import torch_cases
import training_cases

import ringtree
from cases import check, ends
from ranks import run

RANKS = [2, 4]


@functools.cache
def of_operations(ranks):
    return ends(run("torch_cases.py", ranks))


@functools.cache
def of_odd_calls(ranks):
    return ends(run("odd_cases.py", ranks))


@functools.cache
def of_services(ranks):
    return ends(run("service_cases.py", ranks))


@functools.cache
def of_training(ranks, backend):
    variables = {"BACKEND": backend}
    if ":" in backend:
        variables["EXPECTED_BACKEND"] = backend
    return ends(run("training_cases.py", ranks, environment=variables))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", torch_cases.CASES)
def test_operation(name, ranks):
    check(of_operations(ranks)[name], ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", training_cases.CASES)
def test_training(name, ranks):
    check(of_training(ranks, "ringtree")[name], ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", odd_cases.CASES)
def test_odd_call(name, ranks):
    check(of_odd_calls(ranks)[name], ranks)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", service_cases.CASES)
def test_service(name, ranks):
    check(of_services(ranks)[name], ranks)


def test_program_that_knows_only_gloo():
    program = ("stand_in_program.py", 2, "--flag", "value")
    for options in [], ["-P"]:
        outputs = run(*program, before=[*options, "-m", "ringtree.gloo"])
        words = ["RingtreeBackend", "1.0", "--flag", "value"]
        assert [out.split() for out in outputs] == [words] * 2


def test_stand_in_prints_usage():
    for arguments, is_error in [(["--help"], False), ([], True), (["-m"], True)]:
        command = [sys.executable, "-m", "ringtree.gloo", *arguments]
        end = subprocess.run(command, capture_output=True, text=True)
        assert end.returncode == 2 * is_error
        assert "usage: python -m ringtree.gloo" in (end.stderr if is_error else end.stdout)


@pytest.mark.parametrize("setting, timeout", [("", 5), (" ", 5), ("500", None)])
def test_setting_replaces_timeout_of_framework(monkeypatch, setting, timeout):
    monkeypatch.setenv("RINGTREE_TIMEOUT_MS", setting)
    assert ringtree._framework_timeout(5) == timeout


def test_group_works_alongside_group_of_gpus():
    run("groups.py", 2, "alongside_a_group_of_gpus")


def test_groups_with_wrapped_backends():
    debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    run("groups.py", 2, "with_wrapped_backends", environment=debug)


@pytest.mark.parametrize("name", training_cases.CASES)
def test_training_alongside_another_backend(name):
    """Like "cpu:ringtree,cuda:nccl", but with Gloo, which can be created without a GPU."""
    check(of_training(2, "cpu:ringtree,cuda:gloo")[name], 2)
