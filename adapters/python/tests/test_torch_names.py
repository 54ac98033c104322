"""Tests that torch has each name that ringtree imports, and reports those that are missing."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(find_spec("ringtree").origin).parent
NAMES = sorted(
    {
        (each.module, name.name)
        for file in PACKAGE.rglob("*.py")
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.ImportFrom) and not each.level and each.module.startswith("torch")
        for name in each.names
    }
)


@pytest.mark.parametrize("module, name", NAMES)
def test_torch_has(module, name):
    assert hasattr(importlib.import_module(module), name)


def test_names_are_found():
    assert ("torch.distributed.distributed_c10d", "_world") in NAMES
