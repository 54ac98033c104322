"""A ray.util.collective backend for actors on one or more hosts.

    from ringtree.ray import register

    register()  # in every actor, and in a driver that calls create_collective_group
    ray.util.collective.init_collective_group(world_size, rank, backend="RINGTREE")

The actors connect through Ray's key-value store. Tensors must be contiguous NumPy arrays, or torch
tensors in host memory. Ray's calls return once they have completed.
"""

import numpy
import ray.experimental.internal_kv as kv
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from . import init
from .errors import UsageError

NAME = "RINGTREE"

_OPERATORS = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}


def register() -> None:
    """Register the backend with Ray in this process, unless it is already registered."""
    # Ray rejects a second registration of the same name, and it has no public function to check for
    # one.
    global _is_registered
    if not _is_registered:
        register_collective_backend(NAME, RingtreeGroup)
        _is_registered = True


_is_registered = False


class _Store:
    """An adapter from Ray's key-value store to ringtree.Store."""

    def __init__(self, prefix):
        self._prefix = prefix

    def set(self, key, value):
        kv._internal_kv_put(self._prefix + key, value)

    def get(self, key, at_most):
        return kv._internal_kv_get(self._prefix + key)

    def add(self, key, amount):
        """Add `amount` by creating one key per unit, because Ray's store cannot add numbers.

        This works because only one process can create a given key.
        """
        stem = f"{self._prefix}{key}/"
        units = len(kv._internal_kv_list(stem))
        while amount > 0:
            already_exists = kv._internal_kv_put(f"{stem}{units}", b"", overwrite=False)
            amount -= not already_exists
            units += 1
        return units

    def clear(self):
        kv._internal_kv_del(self._prefix, del_by_prefix=True)


class RingtreeGroup(BaseGroup):
    """A Ray collective group. The names and arguments of its methods are defined by Ray."""

    def __init__(self, world_size, rank, group_name):
        super().__init__(world_size, rank, group_name)
        store = _Store(f"ringtree/{group_name}/")
        try:
            self._comm = init(rank, world_size, store=store)
            # Rank 0 must not clear the store before all ranks have read it.
            self._comm.barrier()
        finally:
            # A later group with this name must not find this group's entries, even if this group
            # failed.
            if rank == 0:
                store.clear()

    @classmethod
    def backend(cls):
        return NAME

    @classmethod
    def check_backend_availability(cls):
        return True

    def destroy_group(self):
        self._comm.close()

    def barrier(self, barrier_options=None):
        self._comm.barrier()

    def allreduce(self, tensor, allreduce_options):
        buffer, dtype = _buffer(tensor)
        self._comm.all_reduce(buffer, _operator(allreduce_options), dtype=dtype)

    def reduce(self, tensor, reduce_options):
        buffer, dtype = _buffer(tensor)
        root = reduce_options.root_rank
        # With Ray, the tensors of the other ranks stay unchanged, but ringtree writes to them.
        used = buffer if self.rank == root else buffer.copy()
        self._comm.reduce(used, _operator(reduce_options), root, dtype=dtype)

    def broadcast(self, tensor, broadcast_options):
        buffer, dtype = _buffer(tensor)
        self._comm.broadcast(buffer, broadcast_options.root_rank, dtype=dtype)

    def allgather(self, tensor_list, tensor, allgather_options=None):
        buffer, dtype = _buffer(tensor)
        parts = self._parts(tensor_list, tensor)
        if not all(part.flags.writeable for part in parts):
            raise UsageError("allgather writes to the tensors of the list, but one is read-only")
        whole = numpy.empty(buffer.size * self.world_size, buffer.dtype)
        self._comm.all_gather_into(buffer, whole, dtype=dtype)
        for part, found in zip(parts, numpy.split(whole, self.world_size)):
            part.reshape(-1)[:] = found

    def reducescatter(self, tensor, tensor_list, reducescatter_options):
        buffer, dtype = _buffer(tensor)
        parts = [part.reshape(-1) for part in self._parts(tensor_list, tensor)]
        op = _operator(reducescatter_options)
        self._comm.reduce_scatter_into(numpy.concatenate(parts), buffer, op, dtype=dtype)

    def send(self, tensor, send_options):
        buffer, dtype = _buffer(tensor)
        self._comm.send(buffer, send_options.dst_rank, dtype=dtype)

    def recv(self, tensor, recv_options):
        buffer, dtype = _buffer(tensor)
        self._comm.recv(buffer, recv_options.src_rank, dtype=dtype)

    def _parts(self, tensor_list, tensor):
        """Return arrays over the tensors of the only list in `tensor_list`, one for each rank."""
        (tensors,) = tensor_list
        if len(tensors) != self.world_size:
            raise UsageError(
                f"the list must have {self.world_size} tensors, one per rank; got {len(tensors)}"
            )
        expected = _kind(*_buffer(tensor))
        found = [_buffer([each]) for each in tensors]
        for kind in (_kind(*each) for each in found):
            if kind != expected:
                raise UsageError(
                    "all tensors in a call must have the same type and shape; "
                    f"got {expected} and {kind}"
                )
        return [array for array, _ in found]


def _kind(array, dtype):
    return f"{dtype or array.dtype}{list(array.shape)}"


def _operator(options):
    if options.reduceOp not in _OPERATORS:
        known = " ".join(op.name for op in _OPERATORS)
        raise UsageError(f"unsupported operator {options.reduceOp}; use one of: {known}")
    return _OPERATORS[options.reduceOp]


def _buffer(tensors):
    """Return an array over the memory of the only tensor in Ray's list, and its element type.

    The element type is None if the array itself has that type.
    """
    (tensor,) = tensors
    array, dtype = _array(tensor)
    if not array.flags.c_contiguous:
        raise UsageError("the tensor is not contiguous; pass a contiguous copy")
    return array, dtype


def _array(tensor):
    if isinstance(tensor, numpy.ndarray):
        return tensor, None
    if type(tensor).__module__.partition(".")[0] != "torch" or not tensor.is_cpu:
        raise UsageError(
            "tensors must be NumPy arrays or torch tensors in host memory; got "
            f"{type(tensor).__name__} in {getattr(tensor, 'device', 'host memory')}"
        )
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy(), "bf16"
    return tensor.detach().numpy(), None
