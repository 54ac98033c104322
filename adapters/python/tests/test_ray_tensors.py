"""Tests the tensors of the backend for Ray, without Ray itself."""

import functools

import pytest
import ray_cases

from cases import ends
from ranks import run


@functools.cache
def found():
    return ends(run("ray_cases.py", 2))


@pytest.mark.parametrize("name", ray_cases.CASES)
def test_case(name):
    assert found()[name] == {0: "ok", 1: "ok"}
