"""Conversion of torch's calls: types, operators, and element addresses."""

import torch
import torch.distributed as dist

from . import _torch_internals as internals
from ._tensors import DTYPES
from ._work import Work, span
from .errors import UsageError

# torch's operators, keyed by ringtree's names, and the reverse.
OPERATORS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
NAMES = {op: name for name, op in OPERATORS.items()}

# A bool is a byte that must remain 0 or 1.
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


class Plan:
    """The ringtree calls made for one torch call."""

    def __init__(self, backend, name):
        self.backend = backend
        # The name that torch's profiler shows.
        self.name = name
        self.calls = []
        # Tensors that keep the memory alive until the calls have completed (see `memory_of`).
        self.used = []
        # Addresses of the tensors that are reduced in place.
        self.in_place = set()
        # Pairs of a non-contiguous output and the contiguous copy that is written instead.
        self.copies = []

    def add(self, collective, inputs, outputs, root=0, op=None, counts=None, is_in_place=False):
        first = (outputs or inputs)[0]
        name, each = DTYPES.get(first.dtype) or ("u8", first.element_size())
        operator, factor = ("sum", None) if op is None else _operator(op, first.dtype, collective)
        if each != 1 and counts is not None:
            counts = tuple([count * each for count in side] for side in counts)
        read = [self._part(tensor, each, first.dtype) for tensor in inputs]
        written = [self._part(tensor, each, first.dtype, True, is_in_place) for tensor in outputs]
        self.calls.append(
            (collective, name, operator, factor, root, is_in_place, read, written, counts)
        )

    def add_barrier(self):
        self.calls.append(("barrier", "u8", "sum", None, 0, False, [], [], None))

    def _part(self, tensor, each, dtype, is_written=False, is_in_place=False):
        own, near = memory_of(tensor)
        if is_in_place and near is own:
            # A tensor that is in a list twice is reduced only once, as with Gloo. The second call
            # reduces a copy, because all ranks must make the same number of calls.
            if near.data_ptr() in self.in_place:
                near = own.clone()
            self.in_place.add(near.data_ptr())
        if tensor.dtype != dtype:
            raise UsageError(
                f"all tensors in a call must have the same type; got {dtype} and {tensor.dtype}"
            )
        if own is not near and is_written:
            self.copies.append((own, near))
        self.used.append(near)
        return near.data_ptr(), near.numel() * each

    def check_whole(self, whole, block):
        """Raise UsageError unless `whole` has as many elements as one `block` per rank."""
        ranks = self.backend.size()
        if whole.numel() != ranks * block.numel():
            raise UsageError(
                f"{self.name} of {ranks} blocks with {block.numel()} elements requires a tensor of "
                f"{ranks * block.numel()} elements for all blocks; got {whole.numel()}"
            )

    def check_blocks(self, blocks, block=None, are_equal=False):
        """Raise UsageError unless `blocks` has one tensor per rank.

        If `block` is given, this rank's own tensor must have the shape of `block`, and so must
        every tensor with the same number of elements. If `are_equal` is true, all tensors must have
        this shape.
        """
        ranks = self.backend.size()
        if len(blocks) != ranks:
            raise UsageError(
                f"{self.name} requires a list of {ranks} tensors, one per rank; got {len(blocks)}"
            )
        for rank, each in enumerate(blocks if block is not None else ()):
            must_fit = are_equal or rank == self.backend.rank() or each.numel() == block.numel()
            if must_fit and each.shape != block.shape:
                raise UsageError(
                    f"{self.name} requires tensors of equal shape; this rank's tensor has the "
                    f"shape {list(block.shape)}, and tensor {rank} in the list has the shape "
                    f"{list(each.shape)}"
                )

    def start(self, tensors, opts, shown=None):
        """Start the calls and return their work.

        torch's profiler shows the tensors in `shown`, or all tensors if `shown` is None.
        """
        backend = self.backend
        backend.sequence += 1
        is_async = backend.group is not None or opts is None or opts.asyncOp
        timeout = internals.call_timeout(opts)
        with span(self.name, self.used if shown is None else shown) as begun:
            running = backend.comm._calls(self.calls, self.used, is_async, timeout)
        finish = self._copy_back if self.copies else None
        if running is None:
            work = Work(tensors, (), finish, begun)
            work.wait()
            return work
        return backend.noted(Work(tensors, [running], finish, begun))

    def _copy_back(self):
        for own, near in self.copies:
            write_back(own, near)


def memory_of(tensor):
    """Return an alias of `tensor`, and a contiguous tensor with the same elements.

    If the alias is contiguous, it is also the second tensor. If the program assigns to
    `tensor.data` during a call, neither tensor changes. Autograd does not see writes to them.
    """
    tensor = internals.completed(tensor)
    _check(tensor)
    own = tensor.data
    return own, own if own.is_contiguous() else own.contiguous()


def write_back(own, near):
    """Copy `near` to the tensor `own`."""
    for dimension, (length, stride) in enumerate(zip(own.shape, own.stride())):
        if stride == 0 and length > 1:
            # The elements along this dimension share memory. The last one is kept, as with Gloo.
            own, near = (each.narrow(dimension, length - 1, 1) for each in (own, near))
    own.copy_(near)


def _check(tensor):
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise UsageError(
            f"tensors must be dense and in host memory; got {tensor.layout} on {tensor.device}"
        )
    refuse_lazy(tensor)
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        raise UsageError("the tensor has elements but its storage is empty; resize the storage")


def refuse_lazy(tensor):
    """Raise UsageError for a lazy tensor, because torch would reduce only a copy of it."""
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(
            "lazily conjugated or negated tensors are not supported; call resolve_conj() or "
            "resolve_neg()"
        )
    if internals.is_without_memory(tensor):
        raise UsageError("the tensor has elements but no memory; pass torch.zeros instead")


def _operator(op, dtype, collective):
    if dtype not in DTYPES:
        raise UsageError(
            f"{collective} of {dtype} tensors is not supported; they can be moved, but not reduced"
        )
    kind = internals.operator_kind(op)
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        factor = internals.premul_factor(op)
        if not dtype.is_floating_point:
            raise UsageError(f"PREMUL_SUM requires floating-point tensors; got {dtype}")
        return "sum", factor
    name = NAMES[kind]
    if dtype is torch.bool:
        if name not in OPERATORS_OF_BOOL:
            raise UsageError(f"{name} of bool is not defined; convert the tensor to a numeric type")
        return OPERATORS_OF_BOOL[name], None
    if dtype.is_complex and name not in OPERATORS_OF_COMPLEX:
        raise UsageError(f"{collective} of {dtype} tensors supports only SUM and AVG, not {name}")
    return name, None
