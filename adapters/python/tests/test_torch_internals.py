"""Tests each use of torch's internals in a test of the same name, which fails if torch changes.

If torch lacks a name that ringtree imports, test_torch_names.py says which one.
"""

import datetime
import inspect
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ringtree import _torch_internals as internals
from ringtree import _work
from ringtree._backend import RingtreeBackend
from torch._C._distributed_c10d import _ProcessGroupWrapper
from torch.distributed._functional_collectives import AsyncCollectiveTensor

CPU = torch.device("cpu")
# torch's C++ code that calls the methods of a backend in Python.
CALLS = Path(torch.__file__).with_name("include") / "torch/csrc/distributed/c10d/py/PyBackend.hpp"
# Methods that only ringtree or torch's Python code calls.
OWN = "__init__ _leave _monitored _message _in_place noted perform_nocolor_split".split()
METHODS = [
    name
    for name, each in vars(RingtreeBackend).items()
    if inspect.isfunction(each) and name not in OWN
]


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("ringtree", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class CountingWork(internals.C10dWork):
    """A work that counts the calls of is_completed, and is completed as of the second call."""

    calls = 0

    def is_completed(self):
        self.calls += 1
        return self.calls > 1

    def source_rank(self):
        return 3

    def get_future(self):
        return internals.answer_instead_of_future(self) or torch.futures.Future()


@pytest.mark.parametrize("name", METHODS)
def test_name_of_a_method(name):
    call = rf'"{name}"|\bBackend,\s+{name}\b'
    assert re.search(call, CALLS.read_text()), f"torch no longer calls {name}"


def test_attributes_of_a_backend(group):
    """An attribute that torch reads in Python, and that the class lacks, reads itself forever."""
    backend = internals.backend_of(group, CPU)
    properties = vars(internals.C10dBackend).items()
    names = [key for key, each in properties if isinstance(each, property) and "supports" in key]
    assert "supports_splitting" in names
    for name in names:
        assert getattr(backend, name) in (True, False), name


def test_every_use_has_a_test():
    names = {
        name
        for name, each in vars(internals).items()
        if inspect.isfunction(each)
        and each.__module__ == internals.__name__
        and not name.startswith("_")
    }
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert names <= tested, names - tested


def test_replace_methods():
    assert internals.C10dWork.is_completed is internals.is_completed
    assert internals._is_completed_in_cpp is not internals.is_completed
    assert internals.C10dWork._source_rank is internals.source_rank
    assert internals._source_rank_in_cpp is not internals.source_rank


def test_is_completed():
    """torch's method does not call Python. ringtree's method does, through get_future."""
    work = CountingWork()
    assert not internals._is_completed_in_cpp(work) and work.calls == 0
    assert not internals.is_completed(work)
    assert internals.is_completed(work) and work.calls == 2


def test_source_rank():
    """torch's method does not call Python. ringtree's method does, through get_future."""
    work = CountingWork()
    with pytest.raises(RuntimeError, match="recv"):
        internals._source_rank_in_cpp(work)
    assert internals.source_rank(work) == 3


def test_answer_instead_of_future():
    work = CountingWork()
    assert internals.answer_instead_of_future(work) is None
    assert not work.get_future().done() and work.calls == 0


def test_answers_in_python(group):
    assert internals.answers_in_python(CountingWork())
    assert internals.answers_in_python(dist.all_reduce(torch.ones(3), async_op=True))
    work = dist.all_reduce(torch.ones(3), group=dist.new_group(backend="gloo"), async_op=True)
    assert not internals.answers_in_python(work)


def test_is_asked_by_reducer(group):
    """The reducer calls from C++. The function that starts backward is the next Python frame."""
    assert internals.is_asked_by_reducer(None)
    assert not internals.is_asked_by_reducer(sys._getframe())
    callers = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, numbers):
            return numbers * 2

        @staticmethod
        def backward(ctx, grad):
            frame = sys._getframe()
            while frame is not None and not internals.is_asked_by_reducer(frame):
                frame = frame.f_back
            callers.append(frame)
            return grad

    Asks.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert callers[0] is None or internals.is_asked_by_reducer(callers[0])
    frames = []

    def asks(self):
        frames.append(sys._getframe(1))
        return get_future(self)

    get_future = _work.Work.get_future
    _work.Work.get_future = asks
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
    finally:
        _work.Work.get_future = get_future
    assert frames and all(map(internals.is_asked_by_reducer, frames))


def test_may_be_compressed(group, monkeypatch):
    """The hook compresses a bucket to f16, and C++ code reads the tensors in its future."""
    asked = []

    def may_be(tensors):
        asked.append(may_be_compressed(tensors))
        return asked[-1]

    may_be_compressed = internals.may_be_compressed
    monkeypatch.setattr(internals, "may_be_compressed", may_be)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    model(torch.ones(1, 2)).sum().backward()
    assert asked == [True]
    assert model.module.weight.grad.tolist() == [[1, 1], [1, 1]]


def test_list_future():
    first = torch.futures.Future()
    listed = internals.list_future(first, [torch.ones(2)])
    assert not listed.done()
    threading.Timer(0.05, first.set_result, [1]).start()
    (found,) = listed.wait()
    assert found.tolist() == [1, 1]


def test_is_profiled():
    assert not internals.is_profiled()
    with torch.profiler.profile():
        assert internals.is_profiled()


def test_begin_span():
    with torch.profiler.profile() as profile:
        end, noted = internals.begin_span("ringtree:test", [torch.ones(2)])
        assert not noted.done()
        thread = threading.Thread(target=end.set_result, args=[None])
        thread.start()
        thread.join()
        noted.wait()
    (event,) = (each for each in profile.events() if each.name == "ringtree:test")
    assert event.is_async


def options_of_a_call(op):
    """Returns the options that torch passes to a backend's all-reduce."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def is_recording():
    """Returns whether the profiler has its records, which it frees when it stops."""
    return torch._C._autograd._profiler_enabled()


@pytest.fixture
def own_stop(monkeypatch):
    """Undoes what the test adds to the profiler's stop."""
    profiler = torch.autograd.profiler
    monkeypatch.setattr(profiler, "_disable_profiler", profiler._disable_profiler)


def test_before_profiler_stops(own_stop):
    """The function runs before the profiler frees its records."""
    stopping = []
    internals.before_profiler_stops(lambda: stopping.append(is_recording()))
    with torch.profiler.profile():
        assert not stopping
    assert stopping == [True] and not is_recording()


def test_profiler_stops_after_an_interrupt(own_stop):
    """The function runs again before the profiler stops, and the program gets the exception."""
    stopping = []

    def interrupted_once():
        stopping.append(is_recording())
        if len(stopping) == 1:
            raise KeyboardInterrupt

    internals.before_profiler_stops(interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        with torch.profiler.profile():
            pass
    assert stopping == [True, True] and not is_recording()


def test_spans_end_without_another_thread(monkeypatch):
    """The system may refuse a thread when the profiler stops."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_work._waiters, "submit", refuse)
    with torch.profiler.profile() as profile:
        _work.Span("test", [torch.ones(2)])
    assert [each.name for each in profile.events()].count("ringtree:test") == 1


def test_premul_factor():
    options = options_of_a_call(dist._make_nccl_premul_sum(2.5))
    assert internals.operator_kind(options.reduceOp) == dist.ReduceOp.RedOpType.PREMUL_SUM
    assert internals.premul_factor(options.reduceOp) == 2.5
    options = options_of_a_call(dist._make_nccl_premul_sum(torch.tensor(2.5)))
    assert internals.premul_factor(options.reduceOp) == 2.5


def test_operator_kind():
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.BXOR):
        assert internals.operator_kind(op) == op
        kind = internals.operator_kind(options_of_a_call(op).reduceOp)
        assert isinstance(kind, dist.ReduceOp.RedOpType) and kind == op


def test_call_timeout():
    options = dist.AllreduceOptions()
    assert internals.call_timeout(options) is None
    options.timeout = datetime.timedelta(seconds=2.5)
    assert internals.call_timeout(options) == 2.5
    assert internals.call_timeout(None) is None


def test_wait_timeout(group, monkeypatch):
    """torch's C++ code waits for a functional collective, and passes a time of zero."""
    passed = []

    def wait(self, timeout=None):
        passed.append(timeout)
        return wait_in_python(self, timeout)

    wait_in_python = _work.Work.wait
    monkeypatch.setattr(_work.Work, "wait", wait)
    operators = torch.ops._c10d_functional
    waiting = operators.all_gather_into_tensor(torch.ones(3), 1, group.group_name)
    operators.wait_tensor(waiting)
    assert passed == [datetime.timedelta(0)]
    assert internals.wait_timeout(passed[0]) is None and internals.wait_timeout(None) is None
    assert internals.wait_timeout(datetime.timedelta(seconds=2)) == 2


def test_options_timeout():
    seconds = datetime.timedelta(seconds=7)
    options = internals.C10dBackend.Options("ringtree", timeout=seconds)
    assert internals.options_timeout(options) == seconds


def test_set_options_timeout():
    options = internals.C10dBackend.Options("ringtree", timeout=datetime.timedelta(seconds=7))
    internals.set_options_timeout(options, datetime.timedelta(seconds=9))
    assert internals.options_timeout(options) == datetime.timedelta(seconds=9)


def test_completed():
    tensor = torch.ones(3)
    waiting = AsyncCollectiveTensor(tensor)
    assert internals.completed(tensor) is tensor
    assert internals.completed(waiting).data_ptr() == tensor.data_ptr()


def test_backend_of(group):
    backend = internals.backend_of(group, CPU)
    assert isinstance(backend, RingtreeBackend)
    assert internals.backend_of(group, torch.device("meta")) is None
    # The class that wraps backends with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    assert isinstance(_ProcessGroupWrapper.wrapped_pg, property)


def test_default_group(group):
    assert internals.default_group() is group


def test_group_named(group):
    assert internals.group_named(group.group_name) is group


def test_tensors_describe_themselves(group):
    """The compiled module calls a C function of torch's tensor class, which fills a DLTensor."""
    from ringtree.torch import communicator

    assert communicator()._all_reduce(torch.ones(3), "sum")


def test_is_without_memory():
    assert internals.is_without_memory(torch._efficientzerotensor(3))
    assert not internals.is_without_memory(torch.zeros(3))
