"""A program for several ranks: parts of torch's backend interface other than the operations."""

import datetime
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import ringtree
from cases import refused, run_all
from ringtree._work import Span
from ringtree.torch import new_backend

torch.set_num_threads(1)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def backend_of(group):
    return group._get_backend(torch.device("cpu"))


def threads():
    """Returns the number of ringtree's threads."""
    names = [each.read_text() for each in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("ringtree") for name in names)


@case
def groups_start_no_threads():
    dist.barrier()
    before = threads()
    some = [dist.new_group([0, 1]) for _ in range(8)]
    for group in some:
        if dist.get_rank(group) >= 0:
            one = torch.ones(1)
            dist.all_reduce(one, group=group)
            assert one.item() == 2
    assert 0 < threads() <= before
    for group in some:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)


@case
def split_groups():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    try:
        half = dist.split_group(split_ranks=halves, timeout=datetime.timedelta(seconds=30))
    except RuntimeError as error:
        # torch 2.14 splits only groups of GPUs.
        assert torch.__version__.startswith("2.14.") and "No device associated" in str(error)
        return
    one = torch.tensor([float(rank)])
    dist.all_reduce(one, group=half)
    assert one.item() == sum(halves[2 * rank // ranks])
    dist.destroy_process_group(half)
    try:
        dist.split_group(split_ranks=[[0]])
    except ringtree.UsageError as error:
        assert rank != 0 and "use new_group" in str(error)
    else:
        assert rank == 0


@case
def coalesced_lists():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(ranks)]
    dist.all_gather_coalesced(lists, [torch.full((2,), 1.0 + rank), torch.full((3,), 5.0 + rank)])
    for each, (first, second) in enumerate(lists):
        assert first.tolist() == [1.0 + each] * 2 and second.tolist() == [5.0 + each] * 3
    for each in lists:
        each[1] = torch.zeros(2)
    future = dist.all_gather_coalesced(lists, [torch.ones(2), torch.ones(2)], async_op=True)
    for found, each in zip(future.wait(), lists, strict=True):
        assert found[0] is each[0] and found[1] is each[1]


@case
def futures_contain_the_tensors_of_the_call():
    own = torch.ones(3)
    assert dist.reduce(own, 0, async_op=True).get_future().wait()[0] is own


@case
def tensors_listed_twice_are_reduced_once():
    """The results are the same as those of Gloo. On rank 1, the list has no tensor twice."""
    ranks = dist.get_world_size()
    for make in (lambda: torch.ones(4), lambda: torch.ones(2, 3).t()):
        own = make()
        last = make() if dist.get_rank() == 1 else own
        dist.all_reduce_coalesced([own, torch.ones(1), last])
        assert own.eq(ranks).all() and last.eq(ranks).all()
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number.item() == ranks


@case
def sparse_tensors():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # First, the last rank has no elements; second, all ranks have elements at the same indices;
    # third (below), each rank has one row.
    for shape, count in (((5, 5), ranks - 1 - rank), ((4, 6), 2)):
        places = torch.arange(count).repeat(2, 1) % 4
        own = torch.sparse_coo_tensor(places, torch.full((count,), 1.0 + rank), shape)
        whole = own.to_dense()
        dist.all_reduce(whole)
        dist.all_reduce(own)
        assert torch.equal(own.to_dense(), whole)
    rows = torch.sparse_coo_tensor([[rank]], torch.ones(1, 3), (ranks, 3))
    dist.all_reduce(rows)
    assert torch.equal(rows.to_dense(), torch.ones(ranks, 3))
    shapes = "got [3, 3] (2 sparse), [4, 4] (2 sparse)"
    longer = torch.eye(3 + rank).to_sparse()
    refused(ringtree.UsageError, shapes, lambda: dist.all_reduce(longer))


@case
def messages_from_any_rank():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(1, ranks)) + [0])
    own = torch.full((4,), 10.0 + rank)
    if rank > 0:
        for _ in range(3):
            dist.send(own, 0)
        dist.send(own, 0, group=group)
        dist.barrier()
        return
    senders = []
    works = []
    for each in range(ranks - 1):
        one = torch.empty(4)
        sender = dist.recv(one)
        assert one.tolist() == [10.0 + sender] * 4
        senders.append(sender)
        works.append((one, dist.irecv(one)))
    for one, work in works:
        while not work.is_completed():
            pass
        work.wait()
        assert one.tolist() == [10.0 + work._source_rank()] * 4
        senders.append(work._source_rank())
    for each in range(ranks - 1):
        senders.append(dist.recv(one))
    assert sorted(senders) == sorted(3 * list(range(1, ranks))), senders
    for each in range(ranks - 1):
        sender = dist.recv(one, group=group)
        assert one.tolist() == [10.0 + sender] * 4
    # A message of the next case could also be received from any rank.
    dist.barrier()


@case
def backend_outside_the_default_group():
    """Each rank has another number in the new group, so its calls must not use the default group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store, timeout = dist.distributed_c10d._get_default_store(), datetime.timedelta(seconds=60)
    other = (rank + 1) % ranks
    refused(ringtree.UsageError, "timedelta", lambda: new_backend(store, other, ranks, 60))
    backend = new_backend(dist.PrefixStore("other", store), other, ranks, timeout)
    assert (backend.rank(), backend.size()) == (other, ranks)
    number = torch.tensor([float(rank)])
    options = dist.BroadcastOptions()
    backend.broadcast([number], options).wait()
    # Rank 0 of the new group sends.
    assert number.item() == ranks - 1
    backend.shutdown()
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, other, ranks
    options.timeout, options.global_ranks_in_group = timeout, list(range(ranks))
    create = dist.Backend._plugins["RINGTREE"].creator_fn
    refused(ringtree.UsageError, "new_backend", lambda: create(options, None))


@case
def tags():
    """Messages arrive in the order of sending, and the tags of both ranks must match."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers, other = torch.full((3,), float(rank)), torch.empty(3)
    works = [dist.isend(numbers, (rank + 1) % ranks, tag=7)]
    works += [dist.irecv(other, (rank - 1) % ranks, tag=7)]
    for work in works:
        work.wait()
    assert other.tolist() == [float((rank - 1) % ranks)] * 3
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.send(numbers, 1, group, tag=7)
    elif rank == 1:
        try:
            dist.recv(numbers, 0, group, tag=8)
        except ringtree.MismatchError as error:
            assert "tag 7" in str(error) and "tag 8" in str(error), error
        else:
            raise AssertionError("a message with another tag was received")


@case
def refused_calls_in_the_profile():
    """The span of a call that does not start ends before the profile does."""
    refusals = [
        lambda: dist.recv(torch.empty(0)),
        lambda: dist.isend(torch.ones(1), dist.get_rank()),
        lambda: dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BXOR),
    ]
    with torch.profiler.profile():
        for each in refusals:
            refused(ringtree.UsageError, "", each)
        assert not _open_spans()


def _open_spans():
    """Waits until a thread has ended the spans of refused calls. Returns those that stay open."""
    end = time.monotonic() + 10
    while Span._open and time.monotonic() < end:
        time.sleep(0.001)
    return Span._open


@case
def calls_in_flight_when_the_profiler_stops():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for _ in range(3):
        numbers = [torch.ones(3) for _ in range(8)]
        if rank == 0:
            with torch.profiler.profile() as profile:
                works = [dist.all_reduce(each, async_op=True) for each in numbers]
            # The other ranks begin only after the profiler has stopped.
            dist.send(numbers[0], 1)
            for work in works:
                work.wait()
            found = [each.name for each in profile.events()].count("ringtree:all_reduce")
            assert found == len(numbers)
        else:
            if rank == 1:
                dist.recv(torch.empty(3), 0)
            for each in numbers:
                dist.all_reduce(each)
        assert all(each.eq(ranks).all() for each in numbers)


@case
def profiled_calls():
    ranks = dist.get_world_size()
    tensor, every = torch.ones(2, 3), torch.empty(ranks * 4)
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(tensor)
        work = dist.all_gather_into_tensor(every, torch.ones(4), async_op=True)
        work.wait()
    found = {
        each.name: each for each in profile.function_events if each.name.startswith("ringtree:")
    }
    assert sorted(found) == ["ringtree:all_gather_into_tensor", "ringtree:all_reduce"], found
    assert found["ringtree:all_reduce"].input_shapes == [[2, 3]]
    assert all(each.is_async for each in found.values())


@case
def sequence_numbers():
    group = dist.new_group()
    assert group._get_sequence_number_for_group() == 0
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier(group)
    assert group._get_sequence_number_for_group() == 2


@case
def timeout_of_a_single_call():
    """Only rank 0 issues the call. The group's timeout is half an hour."""
    group = dist.new_group()
    if dist.get_rank() == 0:
        try:
            dist.barrier(group, timeout=datetime.timedelta(seconds=0.5))
        except ringtree.DeadlineError as error:
            assert 0.4 < error.elapsed < 60
        else:
            raise AssertionError("the barrier completed")
        assert backend_of(group).get_error() == ErrorType.TIMEOUT
    dist.barrier()


@case
def timeout_set_for_a_group():
    group = dist.new_group()
    dist.barrier(group)
    assert backend_of(group).get_error() == ErrorType.SUCCESS
    dist.set_timeout(datetime.timedelta(seconds=0.5), group)
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except ringtree.DeadlineError as error:
            assert 1 in error.missing
        else:
            raise AssertionError("the call completed")
    dist.barrier()


@case
def abort_of_a_group():
    """An abort ends the group on all ranks, and the world continues to work."""
    group = dist.new_group()
    if dist.get_rank() == 1:
        group.abort()
    else:
        for barrier in dist.barrier, dist.monitored_barrier:
            try:
                barrier(group)
            except ringtree.Error as error:
                assert "rank 1 has aborted" in str(error), error
                # Rank 0 waits for all ranks, and not for a message from itself.
                assert "waiting for send/recv from rank 0" not in str(error) or dist.get_rank() > 0
            else:
                raise AssertionError("the barrier completed")
    expected = ErrorType.COMM_ERROR if dist.get_rank() == 1 else ErrorType.REMOTE_ERROR
    assert backend_of(group).get_error() == expected
    dist.barrier()


@case
def monitored_barriers():
    group = dist.new_group()
    dist.monitored_barrier(group)
    if dist.get_rank() != 1:
        try:
            dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=0.5))
        except ringtree.Error as error:
            text = str(error)
        expected = "Rank 1 failed to pass" if dist.get_rank() == 0 else "successfully reached"
        assert expected in text, text
    dist.barrier()


@case
def monitored_barrier_lists_at_most_eight_ranks():
    """An error names at most eight ranks, so this case needs no world of more ranks."""
    error = ringtree.DeadlineError()
    error.missing, error.missing_count = tuple(range(1, 9)), 12
    if dist.get_rank() == 0:
        backend = backend_of(dist.group.WORLD)
        text = "1, 2, 3, 4, 5, 6, 7, 8 and 4 more"
        assert f"Ranks {text} failed to pass" in backend._monitored(error, wait_all_ranks=True)
        assert "Rank 1 failed to pass" in backend._monitored(error, wait_all_ranks=False)


if __name__ == "__main__":
    dist.init_process_group("ringtree")
    run_all(CASES, dist.get_rank())
    dist.destroy_process_group()
