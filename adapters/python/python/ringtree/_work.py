"""Calls under way, as torch sees them."""

import concurrent.futures
import functools
import sys
import threading

import torch
import torch.distributed as dist
from torch.autograd import _record_function_with_args_enter, profiler
from torch.autograd.graph import _engine_run_backward

from .errors import Error

# Threads that wait until a call has ended, for what torch's C++ has asked to be told of it.
_waiters = concurrent.futures.ThreadPoolExecutor(256, "ringtree-future")


# torch's hook that compresses gradients looks into the future, in C++, for a list of tensors. A
# future of Python's holds an object; TorchScript's holds what it declares.
_LISTED = """
def list_after(ended: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    ended.wait()
    return tensors

def listed(ended: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(list_after, ended, tensors)
"""


@functools.cache
def _typed():
    return torch.jit.CompilationUnit(_LISTED)


# torch asks each work whether it has ended by a method of C++, which knows no work of Python's; of
# those it passes on one question alone, the one for a future. So what is asked in a thread is noted
# here, and the work leaves its answer.
_asked = threading.local()
_is_completed_in_cpp = dist._Work.is_completed
# What a work of Python's says of its operation, and hardly any of C++.
_UNTYPED = 100
_NO_FUTURE = torch.futures.Future()


def _is_completed(work):
    """What torch's class of works answers from now on; for other backends' as before."""
    if _is_completed_in_cpp(work):
        return True
    if work._get_op_type() != _UNTYPED:
        return False
    _asked.answer = None
    try:
        work.get_future()
    except Error:
        raise
    except RuntimeError:
        # Another backend's, that has no futures.
        pass
    finally:
        answer = vars(_asked).pop("answer", None)
    return bool(answer)


dist._Work.is_completed = _is_completed


class Span:
    """A call in the timeline of torch's profiler. It ends in another thread than the one in which
    it begins, by which torch tells calls that go on beside the program."""

    def __init__(self, name, tensors):
        record = _record_function_with_args_enter(f"ringtree:{name}", *tensors)
        self._end = torch.futures.Future()
        end_on = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction
        self._noted = end_on(record, self._end)

    def end_after(self, running):
        """Lets it end when the calls have."""
        _waiters.submit(self._wait_for, running)

    def _wait_for(self, running):
        try:
            for each in running:
                each.wait()
        except Error:
            # The caller hears of it when it waits for the call.
            pass
        finally:
            self._end.set_result(None)

    def wait(self):
        """Returns when the profiler has the end."""
        self._noted.wait()


def span(name, tensors):
    """The span of a call that begins, if a profiler is on."""
    return Span(name, tensors) if profiler._is_profiler_enabled else None


class Work(dist._Work):
    """A call, perhaps under way."""

    def __init__(self, tensors, running=(), finish=None, span=None):
        super().__init__()
        self._tensors = tensors
        self._running = running
        self._finish = finish
        self._span = span
        self._future = None
        self._lock = threading.Lock()
        if span is not None:
            span.end_after(running)

    def wait(self, timeout=None):
        seconds = None if timeout is None else timeout.total_seconds()
        # torch passes zero for "without a limit".
        self._end(seconds or None)
        return True

    def _end(self, seconds=None):
        for each in self._running:
            each.wait(seconds)
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        if self._span is not None:
            self._span.wait()

    def is_completed(self):
        """Whether the call has ended, well or not; if well, the tensors can be used."""
        if not all(each.done() for each in self._running):
            return False
        try:
            self._end()
        except Error:
            # Raised where the call is waited for.
            pass
        return True

    def is_success(self):
        return self.is_completed()

    def synchronize(self):
        self._end()

    def result(self):
        return self._tensors

    def get_future(self):
        """A future of the tensors.

        torch's own reducer asks for one and goes on. Python code, such as a hook of PowerSGD's
        kind, may make calls in a callback of the future: on which thread that runs, and so in
        which order the calls are made, must not depend on how fast this rank is. So for Python
        code this waits, and callbacks run where they are added, as with NCCL.
        """
        if hasattr(_asked, "answer"):
            _asked.answer = self.is_completed()
            return _NO_FUTURE
        with self._lock:
            if self._future is not None:
                return self._future
            ended = torch.futures.Future()
            self._future = ended.then(self._outcome)
        if self._running and _is_asked_by_reducer(sys._getframe(1)):
            if _are_compressed(self._tensors):
                self._future = _typed().listed(self._future, self._tensors)
            _waiters.submit(ended.set_result, None)
        else:
            ended.set_result(None)
        return self._future

    def _outcome(self, _):
        """What the future holds. An error that a callback raises is one for torch's C++ as well;
        of an exception that is merely set, it would take tensors."""
        self._end()
        return self._tensors


class Group(Work):
    """Calls that are waited for together."""

    def __init__(self, works):
        super().__init__([each for work in works for each in work.result()])
        self._works = works
        self._running = [each for work in works for each in work._running]

    def _end(self, seconds=None):
        for work in self._works:
            work._end(seconds)


def _are_compressed(tensors):
    """Whether they may be that hook's. For all others TorchScript, which takes 80 us and adds lines
    to an error, is left out."""
    return all(isinstance(each, torch.Tensor) and each.dtype is torch.float16 for each in tensors)


def _is_asked_by_reducer(caller):
    """Whether C++ asks: below it is no Python code, or that which starts the backward pass."""
    return caller is None or caller.f_code is _engine_run_backward.__code__
