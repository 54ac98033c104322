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
    net, alone = DistributedDataParallel(common.model(64, 1)), common.model(64, 1)
    loss, seconds = common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)
    expected = common.train_on_all_data(alone, torch.optim.SGD(alone.parameters(), 0.1), world, 15)
    assert abs(loss - expected) < 1e-6 * expected, f"{loss} instead of {expected}"
    return loss, seconds


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
