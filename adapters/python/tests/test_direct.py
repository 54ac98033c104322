"""Tests the calls that bypass torch's dispatch, with two and four processes."""

import functools

import direct_cases
import pytest

from cases import check, ends
from ranks import run


@functools.cache
def of_all(ranks):
    return ends(run("direct_cases.py", ranks))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", direct_cases.CASES)
def test_direct(name, ranks):
    check(of_all(ranks)[name], ranks)
