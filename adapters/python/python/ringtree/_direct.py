"""Collectives on tensors past torch's dispatch, which takes longer than a small call itself."""

import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.distributed.distributed_c10d import _world

from . import Communicator
from ._backend import RingtreeBackend
from ._plan import OPERATORS, refuse_lazy
from .errors import UsageError

_CPU = torch.device("cpu")
Communicator._tensors_are(torch.Tensor)

_communicators = weakref.WeakKeyDictionary()
# The group of the last call, and its communicator's all-reduce: most programs have one group.
_last = object, None


def communicator(group=None):
    """The communicator behind a process group of the backend "ringtree"; without one, the default
    group's. It may be used beside the group: the calls of both are in one order.

    Raises UsageError if the group's tensors in host memory belong to another backend.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise UsageError("there is no default process group: call init_process_group first")
    if group not in _communicators:
        backend = group._get_backend(_CPU)
        if not isinstance(backend, RingtreeBackend):
            raise UsageError(
                f"the group's tensors in host memory belong to the backend {backend.name()}: make "
                'one by init_process_group("ringtree") or new_group(backend="ringtree")'
            )
        _communicators[group] = backend.comm
    return _communicators[group]


def all_reduce_(tensor, op="sum", group=None):
    """Reduces `tensor` over all ranks of `group`, in place, and returns it.

    What `torch.distributed.all_reduce` does, without torch's dispatch: for calls so small that this
    counts, as a model's layers make that are spread over ranks. `op` is one of "sum", "avg",
    "prod", "min", "max", "band", "bor", "bxor".

    Past the dispatch go contiguous tensors in host memory, of integers, f16, bf16, f32 or f64, of
    the class torch.Tensor itself, that do not require grad. With any other this is
    `torch.distributed.all_reduce`; lazily conjugated ones are refused. torch.compile traces the
    call, as the operator `torch.ops.ringtree.all_reduce_`.

    Autograd does not see the call, and a gradient passes it as if it were not there; torch warns of
    that in `backward`, as it does for `torch.distributed.all_reduce`. For a sum that gradients pass
    in the right way, take `torch.distributed.nn.functional.all_reduce`.

    Raises UsageError for such a tensor, and if the group's tensors in host memory belong to another
    backend; and ringtree.Error as every call does.
    """
    if not is_dynamo_compiling():
        over = group or _world._default_pg
        known, reduce = _last
        if known() is not over or over is None:
            reduce = _reduction_of(over)
        if reduce(tensor, op):
            return tensor
    if is_compiling():
        torch.ops.ringtree.all_reduce_(tensor, op, "" if group is None else group.group_name)
    else:
        refuse_lazy(tensor)
        dist.all_reduce(tensor, OPERATORS[op], group)
    return tensor


def _reduction_of(group):
    """A communicator's all-reduce of plain tensors, which is kept for the next call."""
    global _last
    reduce = communicator(group)._all_reduce
    _last = weakref.ref(group), reduce
    return reduce


def _operator(tensor, op, name):
    group = _resolve_process_group(name) if name else dist.group.WORLD
    if not communicator(group)._all_reduce(tensor, op):
        dist.all_reduce(tensor, OPERATORS[op], group)


_library = torch.library.Library("ringtree", "DEF")
_library.define("all_reduce_(Tensor(a!) tensor, str op, str group) -> ()")
_library.impl("all_reduce_", _operator, "CompositeExplicitAutograd")
torch.library.register_fake(
    "ringtree::all_reduce_", lambda tensor, op, group: None, lib=_library
)
