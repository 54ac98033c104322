"""Collectives on tensors past torch's dispatch, which takes longer than a small call itself."""

import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch.compiler import is_compiling
from torch.distributed.distributed_c10d import _world

from ._backend import RingtreeBackend
from ._plan import DTYPES, check, named_operator
from .errors import UsageError

_CPU = torch.device("cpu")
# For a type that can only be moved.
_NOT_REDUCED = None, 0

_communicators = weakref.WeakKeyDictionary()
# The group of the last call, and its communicator: most programs have one group.
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
    "prod", "min", "max", "band", "bor", "bxor". The tensor must be contiguous and in host memory.
    torch.compile traces it, as the operator `torch.ops.ringtree.all_reduce_`.

    Raises UsageError for a tensor that it cannot take, and ringtree.Error as every call does.
    """
    if is_compiling():
        name = "" if group is None else group.group_name
        torch.ops.ringtree.all_reduce_(tensor, op, name)
        return tensor
    check(tensor)
    if not tensor.is_contiguous():
        raise UsageError("all_reduce_ works in place: the tensor must be contiguous")
    dtype = tensor.dtype
    name, each = DTYPES.get(dtype, _NOT_REDUCED)
    if each != 1 or dtype is torch.bool:
        op = named_operator(op, dtype, "all-reduce")
    comm = _behind(_world.default_pg if group is None else group)
    comm._all_reduce(tensor, tensor.data_ptr(), tensor.numel() * each, name, op)
    return tensor


def _behind(group):
    """The communicator behind a group, faster."""
    global _last
    known, comm = _last
    if group is None or known() is not group:
        comm = communicator(group)
        _last = weakref.ref(group), comm
    return comm


def _operator(tensor, op, group):
    all_reduce_(tensor, op, _resolve_process_group(group) if group else None)


_library = torch.library.Library("ringtree", "DEF")
_library.define("all_reduce_(Tensor(a!) tensor, str op, str group) -> ()")
_library.impl("all_reduce_", _operator, "CPU")
torch.library.register_fake(
    "ringtree::all_reduce_", lambda tensor, op, group: None, lib=_library
)
