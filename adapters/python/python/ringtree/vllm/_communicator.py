"""The communicator of a group of vLLM's workers."""

import weakref

import torch
from torch.compiler import is_compiling
from torch.distributed.constants import default_pg_timeout
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.utils import get_distributed_timeout_or_none
from vllm.logger import init_logger

from .. import Communicator, _framework_timeout, init
from .._tensors import DTYPES, Store
from ..errors import UsageError

# vLLM prints only the messages of loggers whose names begin with "vllm".
_logger = init_logger("vllm.ringtree")
_groups = weakref.WeakValueDictionary()
Communicator._tensors_are(torch.Tensor)


class RingtreeCommunicator(CpuCommunicator):
    """The device communicator of a vLLM group. vLLM defines the methods and their arguments.

    Ranks are those of the group. The ranks connect through the store of vLLM's process group. Calls
    have the timeout that they would have with Gloo, unless RINGTREE_TIMEOUT_MS is set.
    """

    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", **more):
        # The base class opens shared memory for groups whose names begin with "tp" or "pp". With
        # Ray, it does so even if the ranks are on different hosts. Names that begin with "ep" stay,
        # because the base class needs them for its all-to-all manager.
        hidden = unique_name if unique_name.startswith("ep") else f"ringtree-{unique_name}"
        super().__init__(cpu_group, device, device_group, hidden, **more)
        self.unique_name = unique_name
        self.supports_tensor_dict = True
        timeout = get_distributed_timeout_or_none() or default_pg_timeout
        self.comm = init(
            self.rank_in_group,
            self.world_size,
            store=Store(cpu_group.get_group_store()),
            timeout=_framework_timeout(timeout.total_seconds()),
        ).with_name(unique_name)
        _groups[unique_name] = self
        _logger.info("Group %s communicates over ringtree: %s", unique_name, self.comm.info())

    def destroy(self):
        self.comm.close()
        super().destroy()

    # In a compiled model, the collectives are operators, which torch.compile does not trace.

    def all_reduce(self, input_):
        if is_compiling():
            torch.ops.ringtree.vllm_all_reduce_(input_, self.unique_name)
        else:
            _all_reduce(input_, self.comm)
        return input_

    def all_gather(self, input_, dim=-1):
        if is_compiling():
            whole = torch.ops.ringtree.vllm_all_gather(input_, self.world_size, self.unique_name)
        else:
            whole = _all_gather(input_, self.world_size, self.comm)
        return torch.cat(whole.unbind(), dim)

    def reduce_scatter(self, input_, dim=-1):
        whole = input_.movedim(dim, 0)
        if whole.shape[0] % self.world_size:
            raise UsageError(
                f"reduce_scatter over {self.world_size} ranks cannot split a dimension of length "
                f"{whole.shape[0]} evenly"
            )
        if is_compiling():
            own = torch.ops.ringtree.vllm_reduce_scatter(whole, self.world_size, self.unique_name)
        else:
            own = _reduce_scatter(whole, self.world_size, self.comm)
        return own.movedim(0, dim).contiguous()

    def gather(self, input_, dst=0, dim=-1):
        if self.rank_in_group != dst:
            self.comm.gather_into(_bytes(input_), None, dst)
            return None
        whole = input_.new_empty(self.world_size, *input_.shape)
        self.comm.gather_into(_bytes(input_), _bytes(whole), dst)
        return torch.cat(whole.unbind(), dim)

    def send(self, tensor, dst=None):
        to = (self.rank_in_group + 1) % self.world_size if dst is None else dst
        self.comm.send(_bytes(tensor), to)

    def recv(self, size, dtype, src=None):
        source = (self.rank_in_group - 1) % self.world_size if src is None else src
        tensor = torch.empty(size, dtype=dtype)
        self.comm.recv(_bytes(tensor), source)
        return tensor

    def send_tensor_dict(self, tensor_dict, dst):
        """Send a dictionary. After this call, its tensors can be changed."""
        tensors = {key: each for key, each in tensor_dict.items() if torch.is_tensor(each)}
        others = {key: each for key, each in tensor_dict.items() if key not in tensors}
        shapes = {key: (each.shape, each.dtype) for key, each in tensors.items()}
        self.comm.send_value((list(tensor_dict), shapes, others), dst)
        with self.comm.batch() as batch:
            for tensor in tensors.values():
                batch.send(_bytes(tensor), dst)

    def recv_tensor_dict(self, src):
        keys, shapes, found = self.comm.recv_value(src)
        with self.comm.batch() as batch:
            for key, (shape, dtype) in shapes.items():
                found[key] = torch.empty(shape, dtype=dtype)
                batch.recv(_bytes(found[key]), src)
        return {key: found[key] for key in keys}


def _bytes(tensor):
    """Return the elements as an array of bytes, which is a copy if they are not contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _type_of(tensor):
    """Return the name of ringtree's type for the elements of a tensor to reduce."""
    name, count = DTYPES.get(tensor.dtype, ("", 0))
    if count != 1 or tensor.dtype is torch.bool:
        raise UsageError(f"cannot reduce tensors of {tensor.dtype}")
    return name


def _all_reduce(tensor, comm):
    if not comm._all_reduce(tensor, "sum"):
        near = tensor.contiguous()
        comm.all_reduce(_bytes(near), dtype=_type_of(near))
        if near is not tensor:
            tensor.copy_(near)


def _all_gather(tensor, ranks, comm):
    whole = tensor.new_empty(ranks, *tensor.shape)
    comm.all_gather_into(_bytes(tensor), _bytes(whole))
    return whole


def _reduce_scatter(whole, ranks, comm):
    own = whole.new_empty(whole.shape[0] // ranks, *whole.shape[1:])
    comm.reduce_scatter_into(_bytes(whole), _bytes(own), dtype=_type_of(whole))
    return own


def _comm(group):
    return _groups[group].comm


# The adapter for torch.distributed defines the same namespace.
_library = torch.library.Library("ringtree", "FRAGMENT")
_library.define("vllm_all_reduce_(Tensor(a!) tensor, str group) -> ()")
_library.define("vllm_all_gather(Tensor tensor, int ranks, str group) -> Tensor")
_library.define("vllm_reduce_scatter(Tensor tensor, int ranks, str group) -> Tensor")
_library.impl("vllm_all_reduce_", lambda tensor, group: _all_reduce(tensor, _comm(group)), "CPU")
_library.impl(
    "vllm_all_gather", lambda tensor, ranks, group: _all_gather(tensor, ranks, _comm(group)), "CPU"
)
_library.impl(
    "vllm_reduce_scatter",
    lambda tensor, ranks, group: _reduce_scatter(tensor, ranks, _comm(group)),
    "CPU",
)
torch.library.register_fake(
    "ringtree::vllm_all_reduce_", lambda tensor, group: None, lib=_library
)
torch.library.register_fake(
    "ringtree::vllm_all_gather",
    lambda tensor, ranks, group: tensor.new_empty(ranks, *tensor.shape),
    lib=_library,
)
torch.library.register_fake(
    "ringtree::vllm_reduce_scatter",
    lambda tensor, ranks, group: tensor.new_empty(tensor.shape[0] // ranks, *tensor.shape[1:]),
    lib=_library,
)
