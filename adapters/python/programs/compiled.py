"""torch.compile over functional collectives, DDP and FSDP2."""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import common

rank, world = common.start()
GROUP = dist.group.WORLD


def chain(numbers):
    total = functional.all_reduce(numbers * 2, "sum", GROUP)
    whole = functional.all_gather_tensor(total + 1, 0, GROUP)
    part = functional.reduce_scatter_tensor(whole, "sum", 0, GROUP)
    return part.sin() + functional.all_reduce(part, "max", GROUP)


def collectives():
    numbers = torch.arange(4096.0) + rank
    fast = torch.compile(chain, fullgraph=True)
    torch.testing.assert_close(fast(numbers), chain(numbers))
    seconds = []
    for _ in range(30):
        began = time.perf_counter()
        total = fast(numbers).sum().item()
        seconds.append(time.perf_counter() - began)
    return total, seconds


def trained(net):
    return common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)


def data_parallel():
    return trained(torch.compile(DistributedDataParallel(common.model(64, 1))))


def sharded():
    net = common.model(64, 1)
    for layer in net:
        fully_shard(layer)
    return trained(torch.compile(fully_shard(net)))


common.run("torch.compile, functional collectives", collectives)
common.run("torch.compile, DDP", data_parallel)
common.run("torch.compile, FSDP2", sharded)
dist.destroy_process_group()
