"""A program for several ranks: invalid calls of torch, and tensors whose elements share memory.

Every rank that passes invalid arguments gets a UsageError, and the call sends nothing.
"""

import contextlib
import datetime
import functools
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import ringtree
import cases
from cases import run_all

torch.set_num_threads(1)
CASES = {}
refused = functools.partial(cases.refused, ringtree.UsageError)


def case(function):
    CASES[function.__name__] = function
    return function


def in_both_forms(act):
    """Runs `act` for a blocking and for an asynchronous call, then checks that the group works."""
    for is_async in (False, True):
        act(is_async)
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number.item() == dist.get_world_size()


@case
def tensor_of_all_blocks_with_wrong_length():
    ranks = dist.get_world_size()
    for own, other in ((2, 2 * ranks - 1), (2, 2 * ranks + 1), (3, 3), (1, 0)):

        def act(is_async, own=own, other=other):
            gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
            more = {"async_op": is_async}
            one, all_of = torch.zeros(own), torch.zeros(other)
            refused(f"got {other}", lambda: gather(all_of, one, **more))
            refused(f"got {other}", lambda: scatter(one, all_of, **more))

        in_both_forms(act)


def lists():
    """Yields lists that have a wrong number of tensors, or tensors of wrong shapes."""
    ranks = dist.get_world_size()
    for number in (0, 1, ranks + 1, 6 * ranks):
        length = 6 * ranks // max(number, 1)
        yield f"got {number}", [torch.zeros(length) for _ in range(number)], torch.zeros(6)
    yield "equal shape", [torch.zeros(3, 2) for _ in range(ranks)], torch.zeros(2, 3)
    yield "equal shape", [torch.zeros(5) for _ in range(ranks)], torch.zeros(6)
    mixed = [torch.zeros(2, 3) for _ in range(ranks)]
    mixed[-1] = torch.zeros(6)
    yield "equal shape", mixed, torch.zeros(2, 3)


@case
def lists_that_do_not_fit():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for words, many, one in lists():

        def act(is_async, words=words, many=many, one=one):
            more = {"async_op": is_async}
            refused(words, lambda: dist.all_gather(many, one, **more))
            refused(words, lambda: dist.reduce_scatter(one, many, **more))
            # Only the root passes a list. torch itself rejects an empty list.
            if rank == ranks - 1 and many:
                refused(words, lambda: dist.gather(one, many, rank, **more))
                refused(words, lambda: dist.scatter(one, many, rank, **more))

        in_both_forms(act)
    for number in (0, 1, ranks + 1):
        some = [torch.zeros(2) for _ in range(number)]
        fit = [torch.zeros(2) for _ in range(ranks)]
        in_both_forms(lambda _, some=some, fit=fit: refused(
            f"got {len(some)}", lambda: dist.all_to_all(some, fit)
        ))
        in_both_forms(lambda _, some=some, fit=fit: refused(
            f"got {len(some)}", lambda: dist.all_to_all(fit, some)
        ))


@case
def split_sizes_that_do_not_fit():
    ranks = dist.get_world_size()
    rows = 2 * ranks
    for split in ([1] * ranks, [2] * (ranks + 1), [rows], [rows + 1, -1] + [0] * (ranks - 2)):

        def act(is_async, split=split):
            numbers, output = torch.zeros(rows), torch.zeros(rows)
            exchange = dist.all_to_all_single
            more = {"async_op": is_async}
            refused("split sizes", lambda: exchange(output, numbers, split, split, **more))
            refused("split sizes", lambda: exchange(output, numbers, None, split, **more))
            refused("split sizes", lambda: exchange(output, numbers, split, None, **more))
            # The number of elements is right, but the rows cannot be split evenly.
            odd = torch.zeros(ranks + 1, ranks)
            refused("evenly", lambda: exchange(odd.clone(), odd, **more))

        in_both_forms(act)


@case
def negative_roots_and_tags():
    peer = (dist.get_rank() + 1) % dist.get_world_size()
    refused("out of range", lambda: dist.send(torch.ones(1), peer, tag=-1))
    dist.barrier()


@case
def tensors_without_memory():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    refused("storage is empty", lambda: dist.reduce(tensor, 0))
    refused("storage is empty", lambda: dist.all_reduce(tensor))
    dist.barrier()


@case
def results_of_functional_collectives():
    """A functional collective returns a tensor that gets its memory when the call completes."""
    ranks = dist.get_world_size()
    summed = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    output = torch.zeros(2)
    dist.reduce_scatter(output, [summed] * ranks)
    assert output.tolist() == [ranks * ranks] * 2


@case
def timeouts_that_are_not_valid():
    for timeout in (datetime.timedelta(), datetime.timedelta(seconds=-1), datetime.timedelta.max):
        refused("must be positive", lambda: dist.new_group(timeout=timeout))
    group = dist.new_group(timeout=datetime.timedelta(seconds=60))
    dist.barrier(group)


@case
def parameters_that_are_not_contiguous():
    """Autograd does not record the call, no matter what the layout of the tensor is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    plain = torch.nn.Conv2d(3, 4, 3)
    turned = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    turned.load_state_dict(plain.state_dict())
    for one, other in zip(plain.parameters(), turned.parameters()):
        for tensor in (one, other):
            version = tensor._version
            dist.broadcast(tensor, 0)
            dist.all_reduce(tensor)
            assert tensor._version == version and tensor.is_leaf and tensor.requires_grad
        assert torch.equal(one, other)
    parameter = torch.nn.Parameter(torch.zeros(2, 3).t())
    if rank == 0:
        for peer in range(1, ranks):
            dist.send(torch.ones(3, 2), peer)
    else:
        dist.recv(parameter, 0)
        assert torch.equal(parameter, torch.ones(3, 2))
    leaf = torch.ones(2, 3, requires_grad=True)
    made = (leaf * 2).t()
    squared = made * made
    dist.all_reduce(made)
    squared.sum().backward()
    assert leaf.grad is not None
    for make in (lambda: torch.eye(3).to_sparse(), lambda: torch.eye(3).t()[1:]):
        tensor = make().requires_grad_()
        dist.all_reduce(tensor)
        assert torch.equal(tensor.detach().to_dense(), ranks * make().to_dense())
    with torch.inference_mode():
        inferred = torch.ones(2, 3).t()
    dist.all_reduce(inferred)
    assert inferred.sum() == 6 * ranks


@case
def weighted_sums_of_types_without_arithmetic():
    weighted = dist._make_nccl_premul_sum(0.5)
    for dtype in torch.float8_e4m3fn, torch.uint16:
        refused(str(dtype), lambda: dist.all_reduce(torch.ones(2).to(dtype), op=weighted))


@case
def elements_that_share_memory():
    """The results are the same as those of Gloo."""
    gloo = dist.new_group(backend="gloo")
    makers = {
        "one number": lambda: torch.ones(1).expand(4),
        "rows": lambda: torch.arange(3.0).expand(2, 3),
        "columns": lambda: torch.arange(3.0).reshape(3, 1).expand(3, 2),
        "steps": lambda: torch.arange(5.0).as_strided((3, 2), (1, 1)),
        "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    }
    for name, make in makers.items():
        found, expected = make(), make()
        dist.all_reduce(found)
        dist.all_reduce(expected, group=gloo)
        assert torch.equal(found, expected), (name, found, expected)
        found, expected = make() + dist.get_rank(), make() + dist.get_rank()
        ranks = dist.get_world_size()
        outputs = [[torch.zeros(make().shape) for _ in range(ranks)] for _ in range(2)]
        dist.all_gather(outputs[0], found)
        dist.all_gather(outputs[1], expected, group=gloo)
        for one, other in zip(*outputs):
            assert torch.equal(one, other), (name, one, other)
    dist.destroy_process_group(gloo)


@case
def result_is_copied_to_the_tensor_without_a_work():
    size = dist.get_world_size()
    numbers = torch.ones(4, 4)
    dist.all_reduce(numbers[:, 1], async_op=True)
    end = time.monotonic() + 60
    while numbers[0, 1] != size and time.monotonic() < end:
        time.sleep(0.001)
    assert numbers[:, 1].tolist() == [size] * 4 and numbers.sum() == 12 + 4 * size


@case
def tensor_can_get_another_storage_during_a_call():
    """The call does not write to a storage that the tensor gets while the call is in flight."""
    size = dist.get_world_size()
    for start in (
        lambda tensor: dist.all_reduce(tensor, async_op=True),
        lambda tensor: dist.broadcast(tensor, 0, async_op=True),
    ):
        for _ in range(20):
            tensor = torch.ones(300_000)
            kept = tensor.detach()
            work = start(tensor)
            tensor.data = torch.zeros(3)
            work.wait()
            assert kept[-1] in (1, size) and tensor.tolist() == [0, 0, 0]


if __name__ == "__main__":
    dist.init_process_group("ringtree")
    run_all(CASES, dist.get_rank())
    with contextlib.suppress(ringtree.Error):
        dist.destroy_process_group()
