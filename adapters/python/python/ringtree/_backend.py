"""The subclass of torch's Backend, whose methods torch's C++ calls."""

import concurrent.futures
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.autograd.graph import _engine_run_backward

from . import init
from .errors import UsageError

# By torch's type: the library's, and how many of its elements one of torch's is.
DTYPES = {
    torch.float32: ("f32", 1),
    torch.float64: ("f64", 1),
    torch.float16: ("f16", 1),
    torch.bfloat16: ("bf16", 1),
    torch.int8: ("i8", 1),
    torch.uint8: ("u8", 1),
    torch.int16: ("i16", 1),
    torch.uint16: ("u16", 1),
    torch.int32: ("i32", 1),
    torch.uint32: ("u32", 1),
    torch.int64: ("i64", 1),
    torch.uint64: ("u64", 1),
    torch.bool: ("u8", 1),
    torch.complex64: ("f32", 2),
    torch.complex128: ("f64", 2),
}

# By torch's number of an operator.
OPERATORS = {
    int(dist.ReduceOp.RedOpType.SUM): "sum",
    int(dist.ReduceOp.RedOpType.AVG): "avg",
    int(dist.ReduceOp.RedOpType.PRODUCT): "prod",
    int(dist.ReduceOp.RedOpType.MIN): "min",
    int(dist.ReduceOp.RedOpType.MAX): "max",
    int(dist.ReduceOp.RedOpType.BAND): "band",
    int(dist.ReduceOp.RedOpType.BOR): "bor",
    int(dist.ReduceOp.RedOpType.BXOR): "bxor",
}
PREMUL_SUM = int(dist.ReduceOp.RedOpType.PREMUL_SUM)

# A truth value is a byte that is 0 or 1, and stays one.
OPERATORS_OF_BOOL = {
    "sum": "bor",
    "max": "bor",
    "bor": "bor",
    "prod": "band",
    "min": "band",
    "band": "band",
    "bxor": "bxor",
}
OPERATORS_OF_COMPLEX = ("sum", "avg")

# Threads that wait until a call has ended, to tell the future that torch's C++ has asked for.
_waiters = concurrent.futures.ThreadPoolExecutor(256, "ringtree-future")


class Work(dist._Work):
    """A call, perhaps under way."""

    def __init__(self, tensors, running=(), finish=None):
        super().__init__()
        self._tensors = tensors
        self._running = running
        self._finish = finish
        self._future = None
        self._lock = threading.Lock()

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

    def is_completed(self):
        return all(each.done() for each in self._running)

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
        with self._lock:
            if self._future is not None:
                return self._future
            ended = torch.futures.Future()
            self._future = ended.then(self._outcome)
        if self._running and _is_asked_by_reducer(sys._getframe(1)):
            _waiters.submit(ended.set_result, None)
        else:
            ended.set_result(None)
        return self._future

    def _outcome(self, _):
        """What the future holds. An error that a callback raises is one for torch's C++ as well;
        of an exception that is merely set, it would take tensors."""
        self._end()
        return self._tensors


def _is_asked_by_reducer(caller):
    """Whether C++ asks: below it is no Python code, or that which starts the backward pass."""
    return caller is None or caller.f_code is _engine_run_backward.__code__


class _Store:
    """torch's store, as ringtree asks for one."""

    def __init__(self, store):
        self._store = store

    def set(self, key, value):
        self._store.set(key, value)

    def get(self, key, at_most):
        return self._store.get(key) if self._store.check([key]) else None

    def add(self, key, amount):
        return self._store.add(key, amount)


class RingtreeBackend(C10dBackend):
    """ringtree as torch sees it. The messages between two ranks are received in the order in which
    they were sent, so a tag must be 0."""

    def __init__(self, comm, timeout):
        super().__init__(comm.rank, comm.world_size)
        self.comm = comm
        self._options = C10dBackend.Options("ringtree", timeout=timeout)
        # The calls of a coalesced group, while one is open.
        self._group = None

    def getBackendName(self):
        return "ringtree"

    @property
    def options(self):
        return self._options

    # What torch asks of every backend; the inherited properties would ask this class again.
    @property
    def supports_splitting(self):
        return False

    @property
    def supports_coalescing(self):
        return True

    @property
    def supports_shrinking(self):
        return False

    @property
    def supports_reconfigure(self):
        return False

    @property
    def supports_window(self):
        return False

    @property
    def _supports_time_estimate(self):
        return False

    def supports_tensor_alloc(self, device):
        return False

    def set_timeout(self, timeout):
        self.comm.timeout = timeout.total_seconds()

    def shutdown(self):
        self.comm.close()

    def abort(self):
        self.comm.fail(f"rank {self.comm.rank} has aborted the process group")
        self.comm.close()

    def start_coalescing(self):
        self._group = []

    def end_coalescing(self, device=None):
        group, self._group = self._group, None
        return _Group(group or [])

    # Collectives. Each method's name and arguments are torch's.

    def allreduce(self, tensors, opts):
        return self._in_place("all-reduce", tensors, opts, 0, opts.reduceOp)

    def allreduce_coalesced(self, tensors, opts):
        return self._in_place("all-reduce", tensors, opts, 0, opts.reduceOp)

    def broadcast(self, tensors, opts):
        return self._in_place("broadcast", tensors, opts, opts.rootRank)

    def reduce(self, tensors, opts):
        root = opts.rootRank
        # ringtree leaves other ranks' buffers unspecified; theirs is a copy.
        used = tensors if self.rank() == root else [each.clone() for each in tensors]
        return self._in_place("reduce", used, opts, root, opts.reduceOp)

    def barrier(self, opts=None):
        plan = _Plan(self)
        plan.calls.append(("barrier", "u8", "sum", None, 0, False, [], [], None))
        return plan.start([], opts)

    def allgather(self, outputs, inputs, opts=None):
        plan = _Plan(self)
        for out, own in zip(outputs, inputs):
            plan.add("all-gather", [own], out)
        return plan.start(outputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        return self.allgather(outputs, inputs, opts)

    def all_gather_single(self, output, input, opts=None):
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        plan = _Plan(self)
        for out, own in zip(outputs, inputs):
            plan.add("all-gather", [own], [out])
        return plan.start(outputs, opts)

    def reduce_scatter(self, outputs, inputs, opts):
        plan = _Plan(self)
        for out, whole in zip(outputs, inputs):
            plan.add("reduce-scatter", whole, [out], op=opts.reduceOp)
        return plan.start(outputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        plan = _Plan(self)
        for out, whole in zip(outputs, inputs):
            plan.add("reduce-scatter", [whole], [out], op=opts.reduceOp)
        return plan.start(outputs, opts)

    def gather(self, outputs, inputs, opts):
        plan = _Plan(self)
        out = outputs[0] if self.rank() == opts.rootRank else []
        plan.add("gather", inputs, out, root=opts.rootRank)
        return plan.start(outputs, opts)

    def scatter(self, outputs, inputs, opts):
        plan = _Plan(self)
        whole = inputs[0] if self.rank() == opts.rootRank else []
        plan.add("scatter", whole, outputs, root=opts.rootRank)
        return plan.start(outputs, opts)

    def alltoall(self, outputs, inputs, opts=None):
        plan = _Plan(self)
        counts = [each.numel() for each in inputs], [each.numel() for each in outputs]
        plan.add("all-to-all", inputs, outputs, counts=counts)
        return plan.start(outputs, opts)

    def all_to_all_single(self, output, input, output_split, input_split, opts=None):
        plan = _Plan(self)
        counts = None
        if output_split or input_split:
            sides = (input, input_split), (output, output_split)
            counts = tuple(_elements(each, split, self.size()) for each, split in sides)
        plan.add("all-to-all", [input], [output], counts=counts)
        return plan.start([output], opts)

    # The names before torch 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages.

    def send(self, tensors, peer, tag=0):
        return self._message(tensors, peer, tag, True)

    def recv(self, tensors, peer, tag=0):
        return self._message(tensors, peer, tag, False)

    def recv_anysource(self, tensors, tag=0):
        raise UsageError(
            "torch cannot be told by a Python backend which rank a message came from: "
            "receive from a rank that is named"
        )

    def _message(self, tensors, peer, tag, is_sent):
        if tag:
            raise UsageError(
                f"tag {tag}: ringtree receives messages in the order in which they were sent; "
                "tags must be 0"
            )
        (tensor,) = tensors
        _check(tensor)
        near = tensor.contiguous()
        name, each = DTYPES.get(near.dtype) or ("u8", near.element_size())
        part = near.data_ptr(), near.numel() * each
        running = self.comm._message(name, part, peer, is_sent, near)
        is_copy = near is not tensor and not is_sent
        finish = (lambda: tensor.copy_(near)) if is_copy else None
        return self._noted(Work(tensors, [running], finish))

    def _noted(self, work):
        if self._group is not None:
            self._group.append(work)
        return work

    def _in_place(self, collective, tensors, opts, root, op=None):
        plan = _Plan(self)
        for tensor in tensors:
            plan.add(collective, [], [tensor], root, op, is_in_place=True)
        return plan.start(tensors, opts)


class _Group(Work):
    """Calls that are waited for together."""

    def __init__(self, works):
        super().__init__([each for work in works for each in work.result()])
        self._works = works
        self._running = [each for work in works for each in work._running]

    def _end(self, seconds=None):
        for work in self._works:
            work._end(seconds)


class _Plan:
    """The calls of one method, on tensors' memory."""

    def __init__(self, backend):
        self.backend = backend
        self.calls = []
        # All tensors whose memory is used, kept alive until the calls have ended.
        self.used = []
        # What was written to a contiguous copy: the tensor, and the copy.
        self.copies = []

    def add(self, collective, inputs, outputs, root=0, op=None, counts=None, is_in_place=False):
        first = (outputs or inputs)[0]
        name, each = DTYPES.get(first.dtype) or ("u8", first.element_size())
        operator, factor = ("sum", None) if op is None else _operator(op, first.dtype, collective)
        if each != 1 and counts is not None:
            counts = tuple([count * each for count in side] for side in counts)
        read = [self._part(tensor, each, first.dtype) for tensor in inputs]
        written = [self._part(tensor, each, first.dtype, True) for tensor in outputs]
        self.calls.append(
            (collective, name, operator, factor, root, is_in_place, read, written, counts)
        )

    def _part(self, tensor, each, dtype, is_written=False):
        _check(tensor)
        if tensor.dtype != dtype:
            raise UsageError(f"the tensors of one call have types {dtype} and {tensor.dtype}")
        near = tensor
        if not tensor.is_contiguous():
            near = tensor.contiguous()
            if is_written:
                self.copies.append((tensor, near))
        self.used.append(near)
        return near.data_ptr(), near.numel() * each

    def start(self, tensors, opts):
        backend = self.backend
        is_async = backend._group is not None or opts is None or opts.asyncOp
        running = backend.comm._calls(self.calls, self.used, is_async)
        finish = self._copy_back if self.copies else None
        if running is None:
            if finish is not None:
                finish()
            return Work(tensors)
        return backend._noted(Work(tensors, [running], finish))

    def _copy_back(self):
        for tensor, near in self.copies:
            tensor.copy_(near)


def _check(tensor):
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise UsageError(
            f"ringtree takes dense tensors in host memory, not {tensor.layout} on {tensor.device}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError("ringtree takes no lazily conjugated tensors: call resolve_conj()")


def _operator(op, dtype, collective):
    number = int(op.op)
    if number == PREMUL_SUM:
        factor = op.__getstate__()[1]
        if not dtype.is_floating_point:
            raise UsageError(f"PREMUL_SUM is for floating-point tensors, not {dtype}")
        return "sum", float(factor)
    name = OPERATORS[number]
    if dtype is torch.bool:
        if name not in OPERATORS_OF_BOOL:
            raise UsageError(f"{name} of truth values has no meaning; take a copy of numbers")
        return OPERATORS_OF_BOOL[name], None
    if dtype.is_complex and name not in OPERATORS_OF_COMPLEX:
        raise UsageError(f"{collective} of {dtype} is by SUM or AVG, not by {name}")
    if dtype not in DTYPES:
        raise UsageError(f"{collective} of {dtype} is not offered: it can only be moved")
    return name, None


def _elements(tensor, split, ranks):
    """How many elements each of the blocks has into which the first dimension is split."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows if rows else 0
    if split:
        return [each * row for each in split]
    if rows % ranks:
        raise UsageError(f"{rows} rows do not split evenly over {ranks} ranks; give split sizes")
    return [rows // ranks * row] * ranks


def create(opts, backend_options=None):
    """A backend for one process group, by torch's store."""
    timeout = opts.timeout
    seconds = None if "RINGTREE_TIMEOUT_MS" in os.environ else timeout.total_seconds()
    comm = init(
        opts.group_rank,
        opts.group_size,
        local=_local(opts.group_rank, opts.group_size),
        store=_Store(opts.store),
        timeout=seconds,
    )
    return RingtreeBackend(comm, timeout)


def _local(rank, size):
    """This process's number on its host, if the launcher's numbers are of this group."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    told = [os.environ.get(name, "") for name in names]
    if not all(text.isdigit() for text in told):
        return None
    of_rank, of_size, local_rank, local_size = map(int, told)
    return (local_rank, local_size) if (of_rank, of_size) == (rank, size) else None
