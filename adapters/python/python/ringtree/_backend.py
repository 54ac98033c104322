"""The subclass of torch's Backend, whose methods torch's C++ calls."""

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import ErrorType

from . import init
from ._plan import DTYPES, Plan, check
from ._sparse import reduce_sparse
from ._work import Group, Work, span
from .errors import DeadlineError, Error, UsageError

# Those that are not shut down. torch's wrapper for TORCH_DISTRIBUTED_DEBUG=DETAIL holds a backend
# by C++ alone, and would find its methods gone with the Python object.
_open = set()


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
    """ringtree as torch sees it."""

    def __init__(self, comm, timeout):
        super().__init__(comm.rank, comm.world_size)
        self.comm = comm
        self._options = C10dBackend.Options("ringtree", timeout=timeout)
        # The calls of a coalesced group, while one is open.
        self.group = None
        # The first error that was known when it was last looked for.
        self._failure = None
        # How many collectives were started.
        self.sequence = 0
        _open.add(self)

    def getBackendName(self):
        return "ringtree"

    @property
    def options(self):
        return self._options

    # What torch asks of every backend; the inherited properties would ask this class again.
    @property
    def supports_splitting(self):
        return True

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

    def split(self, store, ranks, opts):
        """A backend for some of the ranks. Others, too, come here."""
        if self.rank() not in ranks:
            # Of None, torch's PyBackend.hpp would take the address.
            raise UsageError(
                f"rank {self.rank()} is in none of the groups, which torch cannot be told by a "
                "backend in Python: split_group needs a group for each rank, new_group does not"
            )
        return RingtreeBackend(_part(self.comm, ranks, opts._timeout), opts._timeout)

    def _get_sequence_number_for_group(self):
        return self.sequence

    def set_timeout(self, timeout):
        self.comm.timeout = timeout.total_seconds()
        self._options._timeout = timeout

    def get_error(self):
        if self in _open:
            self._failure = self.comm.failure()
        if self._failure is None:
            return ErrorType.SUCCESS
        if isinstance(self._failure, DeadlineError):
            return ErrorType.TIMEOUT
        is_own = self._failure.rank == self.rank()
        return ErrorType.COMM_ERROR if is_own else ErrorType.REMOTE_ERROR

    def shutdown(self):
        self._leave()

    def abort(self):
        if self in _open:
            aborted = Error(f"rank {self.rank()} has aborted the process group")
            aborted.rank = self.rank()
            self.comm.fail(str(aborted))
            self._leave()
            self._failure = self._failure or aborted

    def _leave(self):
        if self in _open:
            _open.discard(self)
            self._failure = self.comm.failure()
            self.comm.close()

    def start_coalescing(self):
        self.group = []

    def end_coalescing(self, device=None):
        group, self.group = self.group, None
        return Group(group or [])

    # Collectives. Each method's name and arguments are torch's.

    def allreduce(self, tensors, opts):
        if tensors[0].layout is torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        return self._in_place("all_reduce", tensors, opts, op=opts.reduceOp)

    def allreduce_coalesced(self, tensors, opts):
        return self._in_place("all_reduce", tensors, opts, op=opts.reduceOp)

    def allreduce_sparse(self, tensors, opts):
        for tensor in tensors:
            reduce_sparse(self, tensor, opts)
        return Work(tensors)

    def broadcast(self, tensors, opts):
        return self._in_place("broadcast", tensors, opts, opts.rootRank)

    def reduce(self, tensors, opts):
        root = opts.rootRank
        # ringtree leaves other ranks' buffers unspecified; theirs is a copy.
        used = tensors if self.rank() == root else [each.clone() for each in tensors]
        return self._in_place("reduce", used, opts, root, opts.reduceOp)

    def barrier(self, opts=None):
        plan = Plan(self, "barrier")
        plan.add_barrier()
        return plan.start([], opts)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """A barrier whose error says in torch's words which ranks did not come."""
        if opts.timeout.total_seconds() <= 0:
            raise DeadlineError(f"Rank {self.rank()} timed out in monitoredBarrier at once")
        try:
            self.barrier(opts).wait()
        except Error as error:
            if error.missing and self.rank() == 0:
                some = error.missing if wait_all_ranks else error.missing[:1]
                ranks = ", ".join(map(str, some))
                who = f"Rank{'s' if wait_all_ranks else ''} {ranks} failed to pass monitoredBarrier"
            else:
                who = (
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received "
                    "errors while waiting for send/recv from rank 0"
                )
            error.args = (f"{who}: {error}",)
            raise

    def allgather(self, outputs, inputs, opts=None):
        plan = Plan(self, "all_gather")
        for out, own in zip(outputs, inputs):
            plan.add("all-gather", [own], out)
        return plan.start(outputs, opts, inputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """By rank, what each rank has: the outputs of one input are spread over the lists."""
        return self.allgather([list(each) for each in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output, input, opts=None):
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        plan = Plan(self, "all_gather_into_tensor")
        for out, own in zip(outputs, inputs):
            plan.add("all-gather", [own], [out])
        return plan.start(outputs, opts, inputs)

    def reduce_scatter(self, outputs, inputs, opts):
        plan = Plan(self, "reduce_scatter")
        for out, whole in zip(outputs, inputs):
            plan.add("reduce-scatter", whole, [out], op=opts.reduceOp)
        return plan.start(outputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        plan = Plan(self, "reduce_scatter_tensor")
        for out, whole in zip(outputs, inputs):
            plan.add("reduce-scatter", [whole], [out], op=opts.reduceOp)
        return plan.start(outputs, opts, inputs)

    def gather(self, outputs, inputs, opts):
        plan = Plan(self, "gather")
        out = outputs[0] if self.rank() == opts.rootRank else []
        plan.add("gather", inputs, out, root=opts.rootRank)
        return plan.start(outputs, opts, inputs)

    def scatter(self, outputs, inputs, opts):
        plan = Plan(self, "scatter")
        whole = inputs[0] if self.rank() == opts.rootRank else []
        plan.add("scatter", whole, outputs, root=opts.rootRank)
        return plan.start(outputs, opts, whole)

    def alltoall(self, outputs, inputs, opts=None):
        plan = Plan(self, "all_to_all")
        counts = [each.numel() for each in inputs], [each.numel() for each in outputs]
        plan.add("all-to-all", inputs, outputs, counts=counts)
        return plan.start(outputs, opts, inputs)

    def all_to_all_single(self, output, input, output_split, input_split, opts=None):
        plan = Plan(self, "all_to_all")
        counts = None
        if output_split or input_split:
            sides = (input, input_split), (output, output_split)
            counts = tuple(_elements(each, split, self.size()) for each, split in sides)
        plan.add("all-to-all", [input], [output], counts=counts)
        return plan.start([output], opts, [input])

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
        (tensor,) = tensors
        check(tensor)
        near = tensor.contiguous()
        name, each = DTYPES.get(near.dtype) or ("u8", near.element_size())
        part = near.data_ptr(), near.numel() * each
        begun = span("send" if is_sent else "recv", tensors)
        used = near, near.untyped_storage()
        running = self.comm._message(name, part, (peer, tag), is_sent, used)
        is_copy = near is not tensor and not is_sent
        finish = (lambda: tensor.copy_(near)) if is_copy else None
        return self.noted(Work(tensors, [running], finish, begun))

    def noted(self, work):
        """A call that has been started, of which the open group is told."""
        if self.group is not None:
            self.group.append(work)
        return work

    def _in_place(self, name, tensors, opts, root=0, op=None):
        plan = Plan(self, name)
        for tensor in tensors:
            plan.add(name.replace("_", "-"), [], [tensor], root, op, is_in_place=True)
        return plan.start(tensors, opts)


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
    """A backend for one process group: part of the default group's communicator, if that one is
    ringtree's, or else a world of its own, which meets through torch's store."""
    whole = _default()
    if whole is not None:
        comm = _part(whole.comm, opts.global_ranks_in_group, opts.timeout)
    else:
        comm = init(
            opts.group_rank,
            opts.group_size,
            local=_local(opts.group_rank, opts.group_size),
            store=_Store(opts.store),
            timeout=_seconds(opts.timeout),
        )
    return RingtreeBackend(comm, opts.timeout)


def _default():
    """The default group's backend, if it is one of these."""
    here = torch.device("cpu")
    if not dist.is_initialized() or here not in dist.group.WORLD._device_types:
        return None
    backend = dist.group.WORLD._get_backend(here)
    return backend if backend in _open else None


def _part(comm, ranks, timeout):
    part = comm.subgroup(ranks)
    if (seconds := _seconds(timeout)) is not None:
        part.timeout = seconds
    return part


def _seconds(timeout):
    """torch's timeout, unless the environment has another."""
    return None if "RINGTREE_TIMEOUT_MS" in os.environ else timeout.total_seconds()


def _local(rank, size):
    """This process's number on its host, if the launcher's numbers are of this group."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    told = [os.environ.get(name, "") for name in names]
    if not all(text.isdigit() for text in told):
        return None
    of_rank, of_size, local_rank, local_size = map(int, told)
    return (local_rank, local_size) if (of_rank, of_size) == (rank, size) else None
