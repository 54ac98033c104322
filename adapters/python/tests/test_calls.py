"""Tests asynchronous collectives, batches, values, counts and handles, with three processes."""

import functools

import call_cases
import pytest

from cases import check, ends
from ranks import run


@functools.cache
def of_calls(transport):
    return ends(run("call_cases.py", 3, environment={"RINGTREE_TRANSPORT": transport}))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("name", call_cases.CASES)
def test_call(name, transport):
    check(of_calls(transport)[name], 3)
