"""Tests NumPy arrays and other buffers without torch, with two and four processes."""

import doctest
import functools
import subprocess
import sys
import threading

import buffer_cases
import pytest
import ringtree
from ringtree import _ringtree, errors

from cases import check, ends
from ranks import reserved_port, run


@functools.cache
def of_buffers(ranks):
    return ends(run("buffer_cases.py", ranks))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", buffer_cases.CASES)
def test_case(name, ranks):
    check(of_buffers(ranks)[name], ranks)


@pytest.mark.parametrize("module", [ringtree, errors, _ringtree])
def test_examples_run(module):
    failed, tried = doctest.testmod(module)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner()
    if module is _ringtree:
        # doctest does not find docstrings of compiled functions.
        parser = doctest.DocTestParser()
        texts = {
            "Communicator": ringtree.Communicator.__doc__,
            "block": ringtree.Communicator.block.__doc__,
        }
        for name, text in texts.items():
            runner.run(parser.get_doctest(text, {}, name, None, 0))
        failed, tried = runner.summarize()
    assert finder and failed == 0 and tried > 0


class InMemory:
    """A store for ranks that are threads of one process."""

    def __init__(self):
        self.all, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.all[key] = value
            self.changed.notify_all()

    def get(self, key, at_most):
        with self.changed:
            self.changed.wait_for(lambda: key in self.all, at_most)
            return self.all.get(key)

    def add(self, key, amount):
        with self.changed:
            self.all[key] = self.all.get(key, 0) + amount
            return self.all[key]


@pytest.mark.parametrize("argument", ["store", "rendezvous"])
def test_ranks_connect_through_store_or_rendezvous(argument):
    value = InMemory() if argument == "store" else f"127.0.0.1:{reserved_port()}"
    sums = [bytearray([rank + 1]) for rank in range(2)]

    def run_rank(rank):
        with ringtree.init(rank, 2, interface="lo", **{argument: value}) as comm:
            comm.all_reduce(sums[rank])

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [bytearray([3])] * 2


def test_init_fails_if_store_fails():
    class Broken(InMemory):
        def set(self, key, value):
            raise OSError("the disk is full")

    with pytest.raises(ringtree.JoinError, match="the disk is full") as caught:
        ringtree.init(0, 2, store=Broken(), timeout=5)
    assert caught.value.rank == 0


def test_invalid_arguments_of_init_are_errors():
    with pytest.raises(ringtree.UsageError, match="both rank and world_size"):
        ringtree.init(rank=0)
    with pytest.raises(ringtree.UsageError, match="requires rank and world_size"):
        ringtree.init(transport="shm")
    with pytest.raises(ringtree.UsageError, match="unknown transport"):
        ringtree.init(0, 1, transport="pigeon")
    for wrong in ["localhost", "", ":1", "localhost:http"]:
        words = f'^rendezvous="{wrong}" is malformed; set it to the HOST:PORT'
        with pytest.raises(ringtree.ConfigurationError, match=words):
            ringtree.init(rank=0, world_size=2, rendezvous=wrong)
    words = "^MASTER_ADDR is not set; pass `rendezvous` or `store`, or start the program with"
    with pytest.raises(ringtree.ConfigurationError, match=words):
        ringtree.init(rank=0, world_size=2)
    with pytest.raises(ringtree.ConfigurationError, match="RANK=3 is out of range"):
        ringtree.init(3, 2, rendezvous="127.0.0.1:1")
    with pytest.raises(ringtree.UsageError, match="not a valid timeout"):
        ringtree.init(0, 1, timeout=-1)
    with pytest.raises(ringtree.UsageError, match="longer than 0 s"):
        ringtree.init(0, 1, timeout=0)
    with pytest.raises(ringtree.UsageError, match="argument rank: -1 is out of range"):
        ringtree.init(-1, 1)
    for wrong in ({"local": 3}, {"rendezvous": "\ud800"}, {"transport": 1}):
        words = f"argument {next(iter(wrong))}: "
        with pytest.raises(ringtree.UsageError, match=words):
            ringtree.init(0, 1, **wrong)
    with pytest.raises(ringtree.UsageError, match="hexadecimal"):
        ringtree.init(0, 1, secret="open sesame")


def test_timeout_of_init_limits_the_join(monkeypatch):
    with pytest.raises(ringtree.JoinError, match="within 300 ms"):
        ringtree.init(0, 2, rendezvous=f"127.0.0.1:{reserved_port()}", timeout=0.3)
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": reserved_port()}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ringtree.JoinError, match="within 300 ms"):
        ringtree.init(timeout=0.3)


def test_call_on_closed_communicator_is_error():
    comm = ringtree.init(0, 1)
    comm.close()
    comm.close()
    with pytest.raises(ringtree.UsageError, match="closed"):
        comm.barrier()


def test_ringtree_works_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None; import ringtree; ringtree.init(0, 1).barrier()"
    )
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
