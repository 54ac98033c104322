"""TORCH_DISTRIBUTED_DEBUG=DETAIL: training, and a call with shapes that differ."""

import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import common

dist.set_debug_level_from_env()
rank, world = common.start()


def trained():
    net = DistributedDataParallel(common.model(64, 1))
    return common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)


def mismatch():
    try:
        dist.all_reduce(torch.ones(4 + rank))
    except RuntimeError as error:
        text = str(error).lower()
        assert "shape" in text or "different" in text, text
        return "reported", []
    return "not reported", []


common.run("DEBUG=DETAIL, DDP", trained)
common.run("DEBUG=DETAIL, shapes that differ", mismatch)
os._exit(0)
