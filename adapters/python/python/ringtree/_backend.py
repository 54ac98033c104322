"""The torch.distributed backend, whose methods are called by torch's C++ code."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from . import _torch_internals as internals
from . import _framework_timeout, init
from ._plan import Plan, memory_of, write_back
from ._sparse import reduce_sparse
from ._tensors import DTYPES, Store
from ._torch_internals import C10dBackend, ErrorType
from ._work import Group, Work, span
from .errors import DeadlineError, Error, UsageError

# The backends that have not been shut down. torch's wrapper for TORCH_DISTRIBUTED_DEBUG=DETAIL
# keeps only the C++ part of a backend alive, but it calls the methods of the Python object.
_open = set()


class RingtreeBackend(C10dBackend):
    """The backend for a process group. It runs torch's calls on a communicator."""

    def __init__(self, comm, timeout):
        super().__init__(comm.rank, comm.world_size)
        self.comm = comm
        self._options = C10dBackend.Options("ringtree", timeout=timeout)
        # The calls in the open coalesced group, or None if no group is open.
        self.group = None
        # The first error, if it was known at the last check.
        self._failure = None
        # The number of collectives started so far.
        self.sequence = 0
        _open.add(self)

    def getBackendName(self):
        return "ringtree"

    @property
    def options(self):
        return self._options

    # Attributes that torch reads from every backend. The inherited properties would read themselves
    # without end.
    supports_splitting = True
    # batch_isend_irecv is faster if it starts each message without a coalesced group.
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False
    # The name of `_supports_time_estimate` in torch 2.14.
    supports_time_estimate = False

    def supports_tensor_alloc(self, device):
        return False

    def split(self, store, ranks, opts):
        """Return a backend for the given ranks. torch also calls this method on other ranks."""
        if self.rank() not in ranks:
            # If this method returned None, torch's PyBackend.hpp would dereference a null pointer.
            raise UsageError(
                f"rank {self.rank()} is not in any of the groups, and a Python backend cannot "
                "report this to torch; pass split_group groups that together contain all ranks, or "
                "use new_group"
            )
        timeout = internals.options_timeout(opts)
        return RingtreeBackend(_part(self.comm, ranks, timeout), timeout)

    def perform_nocolor_split(self, device):
        """Do nothing. torch calls this method on ranks that are not in a new group."""

    def _get_sequence_number_for_group(self):
        return self.sequence

    def set_timeout(self, timeout):
        self.comm.timeout = _positive(timeout)
        internals.set_options_timeout(self._options, timeout)

    def get_error(self):
        if self in _open:
            self._failure = self.comm.error()
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
            self.comm.abort(str(aborted))
            self._leave()
            self._failure = self._failure or aborted

    def _leave(self):
        if self in _open:
            _open.discard(self)
            self._failure = self.comm.error()
            self.comm.close()

    def start_coalescing(self):
        self.group = []

    def end_coalescing(self, device=None):
        group, self.group = self.group, None
        return Group(group or [])

    # Collectives. torch defines the names and the arguments of these methods.

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
        # ringtree leaves the contents of the other ranks' buffers unspecified, so those ranks use a
        # copy. torch would crash if it copied a tensor without memory, which `memory_of` rejects.
        is_root = self.rank() == root
        used = tensors if is_root else [memory_of(each)[1].clone() for each in tensors]
        return self._in_place("reduce", tensors, opts, root, opts.reduceOp, used)

    def barrier(self, opts=None):
        plan = Plan(self, "barrier")
        plan.add_barrier()
        return plan.start([], opts)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """Run a barrier whose error names the missing ranks, using torch's wording."""
        if opts.timeout.total_seconds() <= 0:
            raise DeadlineError(f"Rank {self.rank()} timed out in monitoredBarrier immediately")
        try:
            self.barrier(opts).wait()
        except UsageError:
            raise
        except Error as error:
            if who := self._monitored(error, wait_all_ranks):
                error.args = (f"{who}: {error}",)
            raise

    def _monitored(self, error, wait_all_ranks):
        """Return torch's sentence about the missing ranks, or None if they are not known."""
        if self.rank() > 0:
            return (
                f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors "
                "while waiting for send/recv from rank 0"
            )
        if not error.missing:
            return None
        some = error.missing if wait_all_ranks else error.missing[:1]
        more = error.missing_count - len(some) if wait_all_ranks else 0
        ranks = ", ".join(map(str, some)) + (f" and {more} more" if more else "")
        return f"Rank{'s' if wait_all_ranks else ''} {ranks} failed to pass monitoredBarrier"

    def allgather(self, outputs, inputs, opts=None, result=None):
        plan = Plan(self, "all_gather")
        for out, own in zip(outputs, inputs, strict=True):
            plan.check_blocks(out, own)
            plan.add("all-gather", [own], out)
        return plan.start(result or outputs, opts, inputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """Gather several inputs. Afterward, outputs[rank][i] contains input i of that rank."""
        Plan(self, "all_gather_coalesced").check_blocks(outputs)
        if any(len(each) != len(inputs) for each in outputs):
            raise UsageError(f"all_gather_coalesced requires {len(inputs)} outputs for each rank")
        return self.allgather([list(each) for each in zip(*outputs)], inputs, opts, outputs)

    def all_gather_single(self, output, input, opts=None):
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        plan = Plan(self, "all_gather_into_tensor")
        for out, own in zip(outputs, inputs, strict=True):
            plan.check_whole(out, own)
            plan.add("all-gather", [own], [out])
        return plan.start(outputs, opts, inputs)

    def reduce_scatter(self, outputs, inputs, opts):
        plan = Plan(self, "reduce_scatter")
        for out, whole in zip(outputs, inputs, strict=True):
            plan.check_blocks(whole, out)
            plan.add("reduce-scatter", whole, [out], op=opts.reduceOp)
        return plan.start(outputs, opts)

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        plan = Plan(self, "reduce_scatter_tensor")
        for out, whole in zip(outputs, inputs, strict=True):
            plan.check_whole(whole, out)
            plan.add("reduce-scatter", [whole], [out], op=opts.reduceOp)
        return plan.start(outputs, opts, inputs)

    def gather(self, outputs, inputs, opts):
        plan = Plan(self, "gather")
        out = outputs[0] if self.rank() == opts.rootRank else []
        if self.rank() == opts.rootRank:
            plan.check_blocks(out, inputs[0], are_equal=True)
        plan.add("gather", inputs, out, root=opts.rootRank)
        return plan.start(outputs, opts, inputs)

    def scatter(self, outputs, inputs, opts):
        plan = Plan(self, "scatter")
        whole = inputs[0] if self.rank() == opts.rootRank else []
        if self.rank() == opts.rootRank:
            plan.check_blocks(whole, outputs[0], are_equal=True)
        plan.add("scatter", whole, outputs, root=opts.rootRank)
        return plan.start(outputs, opts, whole)

    def alltoall(self, outputs, inputs, opts=None):
        plan = Plan(self, "all_to_all")
        plan.check_blocks(inputs)
        plan.check_blocks(outputs)
        counts = [each.numel() for each in inputs], [each.numel() for each in outputs]
        plan.add("all-to-all", inputs, outputs, counts=counts)
        return plan.start(outputs, opts, inputs)

    def all_to_all_single(self, output, input, output_split, input_split, opts=None):
        plan = Plan(self, "all_to_all")
        sides = (input, input_split), (output, output_split)
        counts = tuple(_elements(each, split, self.size()) for each, split in sides)
        has_splits = output_split or input_split
        plan.add("all-to-all", [input], [output], counts=counts if has_splits else None)
        return plan.start([output], opts, [input])

    # Messages.

    def send(self, tensors, peer, tag=0):
        return self._message(tensors, peer, tag, True)

    def recv(self, tensors, peer, tag=0):
        return self._message(tensors, peer, tag, False)

    def recv_anysource(self, tensors, tag=0):
        return self._message(tensors, None, tag, False)

    def _message(self, tensors, peer, tag, is_sent):
        (tensor,) = tensors
        own, near = memory_of(tensor)
        name, each = DTYPES.get(near.dtype) or ("u8", near.element_size())
        part = near.data_ptr(), near.numel() * each
        # The names that torch gives these calls in the profiler's timeline.
        shown = "send" if is_sent else "recvAnySource" if peer is None else "recv"
        with span(shown, tensors) as begun:
            running = self.comm._message(name, part, (peer, tag), is_sent, near)
        is_copy = near is not own and not is_sent
        finish = (lambda: write_back(own, near)) if is_copy else None
        return self.noted(Work(tensors, [running], finish, begun))

    def noted(self, work):
        """Add a started call to the open coalesced group, if any, and return the call."""
        if self.group is not None:
            self.group.append(work)
        return work

    def _in_place(self, name, tensors, opts, root=0, op=None, used=None):
        plan = Plan(self, name)
        for tensor in used or tensors:
            plan.add(name.replace("_", "-"), [], [tensor], root, op, is_in_place=True)
        return plan.start(tensors, opts)


def _elements(tensor, split, ranks):
    """Split the first dimension into blocks and return the number of elements in each block."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows if rows else 0
    if split:
        if len(split) != ranks or min(split) < 0 or sum(split) != rows:
            raise UsageError(
                f"split sizes must be {ranks} numbers that are not negative and whose sum is "
                f"{rows}; got {list(split)}"
            )
        return [each * row for each in split]
    if rows % ranks:
        raise UsageError(f"cannot split {rows} rows evenly across {ranks} ranks; pass split sizes")
    return [rows // ranks * row] * ranks


def create(opts, backend_options=None):
    """Create the backend for a process group.

    If the default group uses ringtree, create a subgroup of its communicator. Otherwise, connect
    the ranks of the group as a separate world through torch's store.

    Raise UsageError if the rank or the size of the subgroup differs from those in `opts`. This is
    the only sign that the group consists of processes outside the default group. If both are equal
    by chance, such a group is not detected.
    """
    whole = _default()
    if whole is not None:
        comm = _part(whole.comm, opts.global_ranks_in_group, opts.timeout)
        if (comm.rank, comm.world_size) != (opts.group_rank, opts.group_size):
            raise UsageError(
                f"this process is rank {comm.rank} of {comm.world_size} in the subgroup of the "
                f"default group, but the caller expects rank {opts.group_rank} of "
                f"{opts.group_size}; call ringtree.torch.new_backend for a group of other processes"
            )
    else:
        comm = init(
            opts.group_rank,
            opts.group_size,
            local=_local(opts.group_rank, opts.group_size),
            store=Store(opts.store),
            timeout=_seconds(opts.timeout),
        )
    return RingtreeBackend(comm, opts.timeout)


def new_backend(store: dist.Store, rank: int, size: int, timeout: timedelta) -> C10dBackend:
    """Create a backend for processes that need not belong to torch's default group.

    Use it for a library that creates its own process groups, such as torchft. The processes connect
    through `store`, which must not be in use for any other backend. `timeout` limits startup and
    each call, unless RINGTREE_TIMEOUT_MS is set.

    The connections stay open until you call `shutdown()` or `abort()` on the backend, even if you
    drop it.
    """
    if not isinstance(timeout, timedelta):
        raise UsageError(f"timeout must be a datetime.timedelta, not {type(timeout).__name__}")
    comm = init(rank, size, store=Store(store), timeout=_seconds(timeout))
    return RingtreeBackend(comm, timeout)


def _default():
    """Return the default group's backend, or None if it is not an open RingtreeBackend."""
    here = torch.device("cpu")
    if not dist.is_initialized():
        return None
    backend = internals.backend_of(dist.group.WORLD, here)
    return backend if backend in _open else None


def _part(comm, ranks, timeout):
    seconds = _seconds(timeout)
    part = comm.subgroup(ranks)
    if seconds is not None:
        part.timeout = seconds
    return part


def _seconds(timeout):
    """Return torch's timeout in seconds, or None if RINGTREE_TIMEOUT_MS replaces it."""
    return _framework_timeout(_positive(timeout))


def _positive(timeout):
    """Return a timeout in seconds.

    Raise UsageError if it is not positive. torch passes a timeout of more than 292 years as a
    negative one.
    """
    seconds = timeout.total_seconds()
    if seconds <= 0:
        raise UsageError(f"the timeout of a process group must be positive, but it is {timeout}")
    return seconds


def _local(rank, size):
    """Return this process's index on its host and the number of processes on that host.

    Return None if the launcher's variables do not describe this group.
    """
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    told = [os.environ.get(name, "") for name in names]
    if not all(text.isdigit() for text in told):
        return None
    of_rank, of_size, local_rank, local_size = map(int, told)
    return (local_rank, local_size) if (of_rank, of_size) == (rank, size) else None
