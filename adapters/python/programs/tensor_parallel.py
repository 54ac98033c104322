"""Tensor parallelism: columns and rows, sequences, and a grid with FSDP2."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel as tp

import common

rank, world = common.start()
line = init_device_mesh("cpu", (world,))


def block():
    parts = dict(norm=nn.LayerNorm(256), up=nn.Linear(256, 1024))
    return nn.Sequential(OrderedDict(**parts, relu=nn.ReLU(), down=nn.Linear(1024, 256)))


def split(layout, mesh=line, count=4):
    torch.manual_seed(0)
    return nn.Sequential(*(tp.parallelize_module(block(), mesh, layout) for _ in range(count)))


def trained(net, place=0):
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)

    def step(at):
        generator = torch.Generator().manual_seed(at + 1000 * place)
        loss = net(torch.randn(4, 32, 256, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    loss, seconds = common.timed(step, 15)
    return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item(), seconds


PAIR = {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
IN, OUT = dict(input_layouts=Shard(1)), dict(output_layouts=Replicate())
SEQUENCE = {"up": tp.ColwiseParallel(**IN), "down": tp.RowwiseParallel(**OUT)}
SEQUENCE["norm"] = tp.SequenceParallel()
common.run("tensor parallel", lambda: trained(split(PAIR)))
common.run("sequence parallel", lambda: trained(split(SEQUENCE, count=2)))


def grid():
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    net, data = split(PAIR, mesh["tensor"], 2), mesh["data"]
    for part in net:
        fully_shard(part, mesh=data)
    return trained(fully_shard(net, mesh=data), data.get_local_rank())


common.run("tensor parallel and FSDP2", grid)
dist.destroy_process_group()
