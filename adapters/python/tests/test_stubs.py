"""Compares the stubs with the module and checks programs against them with mypy."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import ringtree
from ringtree import _ringtree

from ranks import HERE


def mypy(tmp_path, *arguments):
    """Runs in an empty directory, so that mypy finds only the installed package."""
    command = [sys.executable, "-m", *map(str, arguments)]
    end = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert end.returncode == 0, end.stdout + end.stderr


def test_stubs_match_the_module(tmp_path):
    mypy(tmp_path, "mypy.stubtest", "ringtree._ringtree")


def test_typed_program_passes_strict_mypy(tmp_path):
    mypy(tmp_path, "mypy", "--strict", HERE / "typed_program.py")


def test_mypy_finds_invalid_calls(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import ringtree\n"
        "comm = ringtree.init()\n"
        "comm.all_reduce([1.0])\n"
        "comm.start_all_reduce(bytearray(1), 'mean')\n"
        "comm.recv_any(bytearray(1)).wait()\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", program]
    end = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = [line.split(":")[1] for line in end.stdout.splitlines() if ": error:" in line]
    assert found == ["3", "4", "5"], end.stdout


STUBS = ast.parse(Path(ringtree.__file__).with_name("_ringtree.pyi").read_text())
CLASSES = [
    each.name
    for each in STUBS.body
    if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
]


@pytest.mark.parametrize("name", CLASSES)
def test_docstrings_of_stubs_match_the_module(name):
    (stub,) = (each for each in STUBS.body if isinstance(each, ast.ClassDef) and each.name == name)
    found = getattr(_ringtree, name)
    assert ast.get_docstring(stub) == inspect.getdoc(found)
    methods = (each for each in stub.body if isinstance(each, ast.FunctionDef))
    docstrings = {}
    for each in methods:
        docstrings.setdefault(each.name, ast.get_docstring(each))
    public = {each for each in vars(found) if not each.startswith("_")}
    assert {each for each in docstrings if not each.startswith("_")} == public
    for each in sorted(public):
        docstring = docstrings[each]
        assert docstring and docstring == inspect.getdoc(getattr(found, each)), each
