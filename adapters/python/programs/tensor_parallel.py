"""Tensor parallelism: columns and rows, sequences, and a grid with FSDP2."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel

import common

rank, world = common.start()
line = init_device_mesh("cpu", (world,))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, inputs):
        return self.down(torch.relu(self.up(self.norm(inputs))))


def split(layout, mesh=line, count=4):
    torch.manual_seed(0)
    blocks = [parallel.parallelize_module(Block(), mesh, layout) for _ in range(count)]
    return nn.Sequential(*blocks)


def trained(net, place=0):
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    seconds = []
    for step in range(15):
        generator = torch.Generator().manual_seed(step + 1000 * place)
        inputs = torch.randn(4, 32, 256, generator=generator)
        began = time.perf_counter()
        loss = net(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
    return whole.item(), seconds[common.WARM_UP_STEPS :]


PAIR = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
SEQUENCE = {
    "norm": parallel.SequenceParallel(),
    "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
    "down": parallel.RowwiseParallel(output_layouts=Replicate()),
}
common.run("tensor parallel", lambda: trained(split(PAIR)))
common.run("sequence parallel", lambda: trained(split(SEQUENCE, count=2)))


def grid():
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    net = split(PAIR, mesh["tensor"], 2)
    for block in net:
        fully_shard(block, mesh=mesh["data"])
    return trained(fully_shard(net, mesh=mesh["data"]), mesh["data"].get_local_rank())


common.run("tensor parallel and FSDP2", grid)
dist.destroy_process_group()
