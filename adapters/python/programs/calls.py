"""Collectives that training seldom uses: uneven lists, groups, coalescing, autograd."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

import common

rank, world = common.start()


def part(sender, receiver):
    return torch.full(((sender + receiver) % 3 + 1,), 10.0 * sender + receiver)


def uneven():
    sent = [part(rank, other) for other in range(world)]
    expected = torch.cat([part(other, rank) for other in range(world)])
    sizes, output = [len(each) for each in sent], torch.empty_like(expected)
    dist.all_to_all_single(output, torch.cat(sent), sizes, sizes)
    assert torch.equal(output, expected)
    return output.sum().item(), []


def uneven_lists():
    outputs = [torch.empty(each + 1) for each in range(world)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(rank)) for _ in range(world)])
    assert all(each.eq(sender).all() for sender, each in enumerate(outputs))
    return sum(each.sum().item() for each in outputs), []


def coalesced():
    numbers = [torch.ones(5) * rank, torch.ones(7)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(numbers[0])
        dist.all_reduce(numbers[1])
    manager.wait()
    return sum(each.sum().item() for each in numbers), []


def subgroups():
    numbers = torch.ones(3) * rank
    dist.all_reduce(numbers, group=dist.new_subgroups(2)[0])
    assert numbers.eq(rank // 2 * 4 + 1).all()
    return numbers.sum().item(), []


def gradients():
    numbers = torch.ones(4, requires_grad=True)
    total = differentiable.all_reduce(numbers * (rank + 1))
    torch.cat(differentiable.all_gather(total)).square().sum().backward()
    return numbers.grad.sum().item(), []


for case in uneven, uneven_lists, coalesced, subgroups, gradients:
    common.run(f"calls, {case.__name__.replace('_', ' ')}", case)
common.run("calls, monitored", lambda: (dist.monitored_barrier(timeout=timedelta(0, 20)), []))
dist.destroy_process_group()
