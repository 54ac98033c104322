"""DDP with unusual models: unused parameters, buffers, sparse gradients, bf16."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import common

rank, world = common.start()


class Branches(nn.Module):
    """Uses one of two layers, depending on the rank and the step."""

    def __init__(self):
        super().__init__()
        self.body = common.model(64, 1)
        self.ends = nn.ModuleList([nn.Linear(1000, 1000), nn.Linear(1000, 1000)])
        self.calls = rank

    def forward(self, tokens):
        self.calls += 1
        return self.ends[self.calls % 2](self.body(tokens))


def trained(net, **options):
    torch.manual_seed(0)
    net = DistributedDataParallel(net(), **options)
    return common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)


def normalized():
    norm = [nn.Flatten(0, 1), nn.BatchNorm1d(64), nn.Unflatten(0, (4, 32))]
    return nn.Sequential(nn.Embedding(1000, 64), *norm, nn.Linear(64, 1000))


def sparse():
    return nn.Sequential(nn.Embedding(1000, 32, sparse=True), nn.Linear(32, 1000))


def bf16():
    with torch.autocast("cpu", torch.bfloat16):
        return trained(common.model)


common.run("DDP, unused parameters", lambda: trained(Branches, find_unused_parameters=True))
common.run("DDP, BatchNorm", lambda: trained(normalized))
common.run("DDP, sparse embedding", lambda: trained(sparse))
common.run("DDP, autocast to bf16", bf16)
dist.destroy_process_group()
