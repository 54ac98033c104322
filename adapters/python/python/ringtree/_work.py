"""Calls in flight, represented as torch Work objects."""

import _thread
import contextlib
import os
import queue
import sys
import threading

import torch

from . import _at_exit
from . import _torch_internals as internals
from .errors import Error


class Waiters:
    """Threads that wait for calls to complete, so that torch's C++ code is notified.

    These are daemon threads because Python waits for all other threads, such as those of
    concurrent.futures, before it runs exit handlers. If an exception ended the program, the handler
    that aborts its calls would then run only after the calls had timed out.
    """

    def __init__(self):
        self._tasks = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._changed = threading.Condition()
        # The number of tasks that have not ended.
        self._open = 0

    def submit(self, function, *arguments):
        """Run a function, which must not raise an exception, on one of the threads."""
        # The number of threads has no limit: a task may end only after a later task has ended.
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="ringtree-future", daemon=True).start()
        with self._changed:
            self._open += 1
            self._tasks.put((function, arguments))

    def _run(self):
        while True:
            function, arguments = self._tasks.get()
            function(*arguments)
            # Release the objects before waiting for the next task.
            del function, arguments
            self._idle.release()
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def settle(self):
        """Wait until all tasks have ended, for at most SETTLE_MAX seconds.

        No thread may be in a call when Python exits.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, SETTLE_MAX)


# The maximum number of seconds for which an exiting program waits for the threads. Its calls have
# ended by then.
SETTLE_MAX = 2.0

_waiters = Waiters()
_at_exit.append(_waiters.settle)
# A forked child does not have these threads.
os.register_at_fork(after_in_child=_waiters.__init__)


internals.replace_methods()


class Span:
    """A call in the timeline of torch's profiler.

    The span of a call that is in flight when the profiler stops ends at that time.
    """

    @classmethod
    def forget(cls):
        """Forget all spans. A forked child does not have the threads that end them."""
        cls._open = set()
        cls._lock = threading.Lock()

    def __init__(self, name, tensors):
        self._end, self._noted = internals.begin_span(f"ringtree:{name}", tensors)
        self._is_ending = False
        with Span._lock:
            Span._open.add(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """End the span if its call has not started."""
        if kind is not None:
            self.end_after(())

    def end_after(self, running):
        """End the span once the calls have completed."""
        _waiters.submit(self._wait_for, running)

    def _wait_for(self, running):
        try:
            for each in running:
                each.wait()
        except Error:
            # The caller gets the error when it waits for the call.
            pass
        finally:
            self._set_end()

    def _set_end(self):
        """End the span, unless it has ended."""
        with Span._lock:
            is_first, self._is_ending = not self._is_ending, True
        if is_first:
            self._end.set_result(None)
            # Until here, `end_all` waits for this span.
            with Span._lock:
                Span._open.discard(self)

    def wait(self):
        """Wait until the profiler has recorded the end of the span."""
        self._noted.wait()

    @staticmethod
    def end_all():
        """End all spans, and wait until the profiler has recorded their ends."""
        with Span._lock:
            spans = list(Span._open)
        try:
            _waiters.submit(Span._set_ends, spans)
        except RuntimeError:
            # The system refuses another thread. The timeline then shows these calls as blocking.
            Span._set_ends(spans)
        for each in spans:
            each.wait()

    @staticmethod
    def _set_ends(spans):
        for each in spans:
            each._set_end()


Span.forget()
os.register_at_fork(after_in_child=Span.forget)
internals.before_profiler_stops(Span.end_all)


_NO_SPAN = contextlib.nullcontext()


def span(name, tensors):
    """Return a context manager in which a call starts.

    It yields the call's span, or None if no profiler is enabled.
    """
    return Span(name, tensors) if internals.is_profiled() else _NO_SPAN


class Work(internals.C10dWork):
    """A call that is in flight or has completed."""

    def __init__(self, tensors, running=(), finish=None, span=None):
        super().__init__()
        self._tensors = tensors
        self._running = running
        self._finish = finish
        self._span = span
        self._future = None
        # Copying a result can run the program's code, which may wait for this call.
        self._lock = threading.RLock()
        if span is not None:
            span.end_after(running)

    def __del__(self):
        # The program may drop the Work before the result has been copied to its tensors.
        if getattr(self, "_finish", None) is not None:
            # Unlike threading.Thread, this takes no lock that the interrupted thread may hold.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_finish_after, (self._running, self._finish))

    def wait(self, timeout=None):
        self._end(internals.wait_timeout(timeout))
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
        """Return True if the call has succeeded or failed. After success, the tensors are ready."""
        if not all(each.done() for each in self._running):
            return False
        try:
            self._end()
        except Error:
            # `wait` raises this error again.
            pass
        return True

    def source_rank(self):
        """Return the rank that sent a message to a receive from any rank.

        Return None for all other calls, and until the wait for the message has ended.
        """
        return self._running[0].source if self._running else None

    def result(self):
        return self._tensors

    def get_future(self):
        """Return a future that contains the tensors.

        torch's own reducer gets the future immediately. Python code, such as a PowerSGD hook, may
        issue calls in a callback of the future. The thread that runs the callback, and therefore
        the order of these calls, must not depend on the speed of this rank. For Python code, this
        method therefore waits for the call, and callbacks run where they are added, as they do with
        NCCL.
        """
        if (answered := internals.answer_instead_of_future(self)) is not None:
            return answered
        is_awaited = not (self._running and internals.is_asked_by_reducer(sys._getframe().f_back))
        if is_awaited:
            # Wait here, because torch turns a KeyboardInterrupt in a callback into a RuntimeError.
            with contextlib.suppress(Error):
                self._end()
        with self._lock:
            if self._future is not None:
                return self._future
            ended = torch.futures.Future()
            self._future = ended.then(self._outcome)
        if not is_awaited:
            if internals.may_be_compressed(self._tensors):
                self._future = internals.list_future(self._future, self._tensors)
            _waiters.submit(ended.set_result, None)
        else:
            ended.set_result(None)
        return self._future

    def _outcome(self, _):
        """Return the value of the future, or raise the error of the call.

        torch's C++ code recognizes an error that a callback raises. If an exception were set as the
        value instead, it would try to read tensors from the exception.
        """
        self._end()
        return self._tensors


def _finish_after(running, finish):
    with contextlib.suppress(Error):
        for each in running:
            each.wait()
        finish()


class Group(Work):
    """Several calls that share one wait."""

    def __init__(self, works):
        super().__init__([each for work in works for each in work.result()])
        self._works = works
        self._running = [each for work in works for each in work._running]

    def _end(self, seconds=None):
        for work in self._works:
            work._end(seconds)
