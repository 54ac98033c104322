"""A program of several ranks: the door past torch's dispatch, and torch.compile through it."""

import sys

import torch
import torch.distributed as dist

import ringtree
from ringtree.torch import all_reduce_, communicator

from cases import run_all

torch.set_num_threads(1)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def refused(words, act):
    try:
        act()
    except ringtree.UsageError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was refused; expected: {words}")


@case
def sums_are_those_of_torch():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        for count in (1, 33, 70_000):
            own = (torch.arange(count) % 5 + dist.get_rank()).to(dtype)
            beside = own.clone()
            assert all_reduce_(own) is own
            dist.all_reduce(beside)
            assert torch.equal(own, beside), (dtype, count)


@case
def operators_and_truth_values():
    rank, size = dist.get_rank(), dist.get_world_size()
    assert all_reduce_(torch.tensor([rank]), "max").item() == size - 1
    assert all_reduce_(torch.tensor([float(rank)]), "avg").item() == (size - 1) / 2
    assert all_reduce_(torch.tensor([rank == 0])).item() is True
    assert all_reduce_(torch.tensor([rank == 0]), "min").item() is False
    refused("by SUM or AVG", lambda: all_reduce_(torch.ones(1, dtype=torch.complex64), "max"))


@case
def groups_have_communicators_of_their_own():
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([one, one + 1]) for one in range(0, size, 2)]
    pair = pairs[rank // 2]
    first = rank // 2 * 2
    assert all_reduce_(torch.tensor([rank]), group=pair).item() == 2 * first + 1
    assert communicator(pair).world_size == 2
    assert communicator().world_size == size
    other = dist.new_group(backend="gloo")
    refused("belong to the backend gloo", lambda: all_reduce_(torch.ones(1), group=other))


@case
def what_it_cannot_take_is_said():
    refused("contiguous", lambda: all_reduce_(torch.ones(4, 4).T[1:]))
    refused("dense tensors", lambda: all_reduce_(torch.eye(2).to_sparse()))


@case
def calls_are_in_one_order_with_torchs():
    size = dist.get_world_size()
    first, second = torch.ones(200_000), torch.ones(1)
    work = dist.all_reduce(first, async_op=True)
    all_reduce_(second)
    work.wait()
    assert first[-1].item() == size and second.item() == size


@case
def torch_compile_traces_it():
    def layer(tensor):
        return all_reduce_(tensor * 2) + 1

    own = torch.full((64,), float(dist.get_rank()))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(own.clone()), layer(own.clone()))


if __name__ == "__main__":
    dist.init_process_group("ringtree")
    run_all(CASES, dist.get_rank())
    sys.stdout.flush()
    dist.destroy_process_group()
