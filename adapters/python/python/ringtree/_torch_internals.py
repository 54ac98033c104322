"""All uses of torch's internals. torch documents none of them and may change them in any version.

Each function is one use, and each has a test of the same name in tests/test_torch_internals.py. If
torch changes, these tests name what no longer works. Other tests there cover the interface that
torch's C++ code expects of a backend in Python: the names of RingtreeBackend's methods and
attributes, and the C function that describes a tensor to the compiled module.
"""

import functools
import threading

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import ErrorType, _resolve_process_group
from torch.autograd import _record_function_with_args_enter, profiler
from torch.autograd.graph import _engine_run_backward
from torch.distributed.distributed_c10d import _world

__all__ = ["C10dBackend", "C10dWork", "ErrorType"]

# The C++ class of works, from which a work in Python inherits.
C10dWork = dist._Work

# The operation type of a Work that is written in Python. Hardly any C++ Work has this type.
_UNTYPED = 100
_is_completed_in_cpp = C10dWork.is_completed
_source_rank_in_cpp = C10dWork._source_rank
_asked = threading.local()


def answers_in_python(work):
    """Return True if a Work is written in Python. torch's C++ methods do not call its methods."""
    return work._get_op_type() == _UNTYPED


def is_completed(work):
    """Return True if the Work has completed. Replaces the method of torch's Work class.

    torch's method is in C++ and does not call the method of a Work that is written in Python. For a
    Work of another backend, the result is the same as before.
    """
    if _is_completed_in_cpp(work):
        return True
    return answers_in_python(work) and bool(_ask(work, "is_completed"))


def source_rank(work):
    """Return the rank that sent a received message. Replaces a method of torch's Work class.

    For a Work of another backend, the result is the same as before.
    """
    source = _ask(work, "source_rank") if answers_in_python(work) else None
    return _source_rank_in_cpp(work) if source is None else source


def replace_methods():
    """Make torch's Work class use `is_completed` and `source_rank`."""
    C10dWork.is_completed = is_completed
    C10dWork._source_rank = source_rank


def _ask(work, method):
    """Call a method of a Work that is written in Python, and return the result.

    torch forwards only `wait` and get_future to Python. This function therefore stores the name of
    the method for its thread and calls get_future, which calls the method instead (see
    `answer_instead_of_future`). Return None if the Work belongs to a different backend.
    """
    _asked.method = method
    try:
        work.get_future()
    except RuntimeError as error:
        # The Work belongs to a different backend, which has no futures.
        from .errors import Error

        if isinstance(error, Error):
            raise
    finally:
        vars(_asked).pop("method", None)
        answer = vars(_asked).pop("answer", None)
    return answer


_NO_FUTURE = torch.futures.Future()


def answer_instead_of_future(work):
    """Call the method that `_ask` wants instead of get_future, and return a future for `_ask`.

    Return None if the program itself wants the future.
    """
    # Clear the request first, because the method may run code that calls get_future itself.
    method = vars(_asked).pop("method", None)
    if method is None:
        return None
    _asked.answer = getattr(work, method)()
    return _NO_FUTURE


def is_asked_by_reducer(caller):
    """Return True if C++ code, such as DDP's reducer, has called get_future.

    `caller` is the Python frame from which get_future was called. If C++ code called it, this is
    the frame of the function that starts backward. It is None if distributed autograd runs backward
    on one of torch's own threads.
    """
    return caller is None or caller.f_code is _engine_run_backward.__code__


# torch's hook that compresses gradients reads a list of tensors from a future in C++. A future
# created in Python contains an object, but a TorchScript future contains the declared type.
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


def may_be_compressed(tensors):
    """Return True if the tensors may come from torch's hook that compresses gradients to f16.

    Other tensors bypass TorchScript because TorchScript adds about 80 us and extra lines to error
    messages.
    """
    return all(isinstance(each, torch.Tensor) and each.dtype is torch.float16 for each in tensors)


def list_future(future, tensors):
    """Return a future that C++ code can read as a list of tensors, once `future` has completed.

    A thread of torch's pool waits for `future` in TorchScript.
    """
    return _typed().listed(future, tensors)


def is_profiled():
    """Return True if a profiler is enabled."""
    return profiler._is_profiler_enabled


def begin_span(name, tensors):
    """Begin a call in the profiler's timeline.

    Return two futures. The span ends when you set the first. The second completes once the profiler
    has recorded the end. Set the first on a different thread from the one that called this
    function. Otherwise, the timeline shows the call as blocking.
    """
    record = _record_function_with_args_enter(name, *tensors)
    end = torch.futures.Future()
    end_on = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction
    return end, end_on(record, end)


def before_profiler_stops(function):
    """Call a function each time before torch's profiler stops.

    The profiler frees its records when it stops, and a span that ends later writes to that memory.
    If the function raises an exception, such as KeyboardInterrupt, it is called once more.
    """
    stop = profiler._disable_profiler

    @functools.wraps(stop)
    def stop_after_function():
        try:
            function()
        except BaseException:
            function()
            stop()
            raise
        return stop()

    profiler._disable_profiler = stop_after_function


def premul_factor(op):
    """Return the factor of PREMUL_SUM, which can be a tensor of one element."""
    return float(op.factor)


def operator_kind(op):
    """Return the RedOpType of an operator. The operator may also be a RedOpType itself."""
    return getattr(op, "op", op)


def call_timeout(options):
    """Return the timeout in a call's options in seconds, or None if they do not set one.

    torch passes a negative timeout if the call sets none. Some calls have no options, or options
    without a timeout.
    """
    timeout = getattr(options, "timeout", None)
    seconds = 0 if timeout is None else timeout.total_seconds()
    return seconds if seconds > 0 else None


def wait_timeout(timeout):
    """Return the timeout of a wait in seconds, or None. torch's C++ code passes zero for none."""
    return None if timeout is None else timeout.total_seconds() or None


def set_options_timeout(options, timeout):
    """Set the timeout in the options of a backend."""
    options._timeout = timeout


def options_timeout(options):
    """Return the timeout in the options of a backend."""
    return options._timeout


def is_without_memory(tensor):
    """Return True if the tensor represents zeros without memory. torch would pass on a copy."""
    return tensor._is_zerotensor()


def completed(tensor):
    """Return the tensor, or the result if it represents a functional collective in flight.

    Such a tensor has no memory. torch's own backends get its result.
    """
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    return tensor.trigger_wait()


def backend_of(group, device):
    """Return the backend of a process group for a device, or None if it has none."""
    if device not in group._device_types:
        return None
    backend = group._get_backend(device)
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch wraps the backend.
    return getattr(backend, "wrapped_pg", backend)


def default_group():
    """Return the default process group, or None. Faster than dist.group.WORLD."""
    return _world._default_pg


def group_named(name):
    """Return the process group with this name. Compiled programs refer to groups by name."""
    return _resolve_process_group(name)
