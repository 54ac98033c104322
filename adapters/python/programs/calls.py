"""Collectives that training seldom uses: uneven lists, groups, coalescing, autograd."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

import common

rank, world = common.start()


def uneven():
    sent = [(rank + each) % 3 + 1 for each in range(world)]
    inputs = torch.arange(float(sum(sent)), dtype=torch.float64) + 100 * rank
    output = torch.empty(sum(sent), dtype=torch.float64)
    dist.all_to_all_single(output, inputs, sent, sent)
    return common.mean_over_ranks(output.sum()), []


def uneven_lists():
    outputs = [torch.empty(each + 1) for each in range(world)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(rank)) for _ in range(world)])
    return sum(each.sum().item() for each in outputs), []


def coalesced():
    numbers = [torch.ones(5) * rank, torch.ones(7)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for each in numbers:
            dist.all_reduce(each)
    manager.wait()
    return sum(each.sum().item() for each in numbers), []


def subgroups():
    pair, _ = dist.new_subgroups(2)
    numbers = torch.ones(3) * rank
    dist.all_reduce(numbers, group=pair)
    return common.mean_over_ranks(numbers.sum()), []


def gradients():
    numbers = torch.ones(4, requires_grad=True)
    total = differentiable.all_reduce(numbers * (rank + 1))
    torch.cat(differentiable.all_gather(total)).square().sum().backward()
    return numbers.grad.sum().item(), []


def monitored():
    return dist.monitored_barrier(timeout=timedelta(seconds=20)), []


for case in uneven, uneven_lists, coalesced, subgroups, gradients, monitored:
    common.run(f"calls, {case.__name__.replace('_', ' ')}", case)
dist.destroy_process_group()
