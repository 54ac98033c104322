"""Collectives that bypass torch's dispatch, which takes longer than a small call itself."""

import weakref

import torch
import torch.distributed as dist
from torch.compiler import is_compiling, is_dynamo_compiling

from . import Communicator
from . import _torch_internals as internals
from ._backend import RingtreeBackend
from ._plan import NAMES, OPERATORS, refuse_lazy
from .errors import UsageError

_CPU = torch.device("cpu")
Communicator._tensors_are(torch.Tensor)

_communicators = weakref.WeakKeyDictionary()
# The group of the last call, and the all-reduce of its communicator. Most programs use only one
# group.
_last = object, None


def communicator(group: dist.ProcessGroup | None = None) -> Communicator:
    """Return the communicator behind a process group that uses the "ringtree" backend.

    If `group` is None, return the communicator of the default group. You can use the communicator
    alongside the group. Calls on the communicator and on the group share a single order.

    Raise UsageError if there is no default group, or if the group uses a different backend for
    tensors in host memory.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise UsageError("there is no default process group: call init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("this rank is not a member of the group")
    if group not in _communicators:
        backend = internals.backend_of(group, _CPU)
        if not isinstance(backend, RingtreeBackend):
            used = "no" if backend is None else f"the {backend.name()}"
            raise UsageError(
                f"the group uses {used} backend for tensors in host memory; "
                'create the group with init_process_group("ringtree") or '
                'new_group(backend="ringtree")'
            )
        _communicators[group] = backend.comm
    return _communicators[group]


def all_reduce_(
    tensor: torch.Tensor,
    op: str | dist.ReduceOp | dist.ReduceOp.RedOpType = "sum",
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Reduce `tensor` in place across all ranks of `group`, and return it.

    This function does the same as `torch.distributed.all_reduce` but bypasses torch's dispatch. Use
    it for calls that are short compared with the dispatch, such as those of a model whose layers
    are split across ranks. `op` is one of "sum", "avg", "prod", "min", "max", "band", "bor" and
    "bxor", or the same operator of torch.distributed.ReduceOp.

    The dispatch is bypassed if the tensor's class is torch.Tensor itself and the tensor is
    contiguous in host memory, contains integers, f16, bf16, f32 or f64, and does not require grad.
    For any other tensor, this function calls `torch.distributed.all_reduce`. torch.compile traces
    the call as the operator `torch.ops.ringtree.all_reduce_`.

    Autograd does not record the call, so gradients pass through it unchanged. torch warns about
    this in `backward`, as it does for `torch.distributed.all_reduce`. If you need gradients of the
    sum, use `torch.distributed.nn.functional.all_reduce`.

    Raise UsageError if the tensor is lazily conjugated or negated, or if the group uses a different
    backend for tensors in host memory. Like every call, this function can also raise other
    subclasses of ringtree.Error.
    """
    if not isinstance(op, str):
        op = _name_of(op)
    if not is_dynamo_compiling():
        over = group or internals.default_group()
        known, reduce = _last
        if known() is not over or over is None:
            reduce = _reduction_of(over)
        if reduce(tensor, op):
            return tensor
    if is_compiling():
        torch.ops.ringtree.all_reduce_(tensor, op, "" if group is None else group.group_name)
    else:
        refuse_lazy(tensor)
        dist.all_reduce(tensor, OPERATORS[op.lower()], group)
    return tensor


def _name_of(op):
    """Return ringtree's name for a torch operator."""
    kind = internals.operator_kind(op)
    # A plain number would compare equal to an operator, so check the type first.
    if isinstance(kind, dist.ReduceOp.RedOpType) and kind in NAMES:
        return NAMES[kind]
    raise UsageError(f"unknown operator {op}; use one of: {' '.join(OPERATORS)}")


def _reduction_of(group):
    """Return the all-reduce for the group's communicator, caching it for the next call."""
    global _last
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        # Let torch's own call handle this rank, which is not in the group. torch warns about the
        # call.
        return lambda tensor, op: False
    reduce = communicator(group)._all_reduce
    _last = weakref.ref(group), reduce
    return reduce


def _operator(tensor, op, name):
    group = internals.group_named(name) if name else dist.group.WORLD
    if not communicator(group)._all_reduce(tensor, op):
        dist.all_reduce(tensor, OPERATORS[op.lower()], group)


_library = torch.library.Library("ringtree", "DEF")
_library.define("all_reduce_(Tensor(a!) tensor, str op, str group) -> ()")
_library.impl("all_reduce_", _operator, "CompositeExplicitAutograd")
torch.library.register_fake(
    "ringtree::all_reduce_", lambda tensor, op, group: None, lib=_library
)
