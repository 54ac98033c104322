"""ZeroRedundancyOptimizer, also overlapped with DDP, and periodic model averaging."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import common

rank, world = common.start()


def sharded():
    net = DistributedDataParallel(common.model())
    options = dict(lr=1e-3, parameters_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, **options)
    found = common.train(net, optimizer, rank)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(net.parameters()))
    return found


def overlapped():
    net = DistributedDataParallel(common.model(), gradient_as_bucket_view=True)
    options = dict(lr=1e-3, overlap_with_ddp=True)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, **options)
    net.register_comm_hook(None, hook_with_zero_step(allreduce_hook, net, optimizer))
    found = common.train(net, optimizer, rank)
    common.check_replicas(net)
    return found


def averaged():
    net = common.model(64, 1)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), 0.1), averager)
    loss, seconds = common.train(net, optimizer, rank)
    # Every second step communicates.
    return loss, [sum(each) for each in zip(seconds[::2], seconds[1::2])]


common.run("ZeroRedundancyOptimizer", sharded)
common.run("ZeroRedundancyOptimizer, overlapped with DDP", overlapped)
common.run("PeriodicModelAverager", averaged)
dist.destroy_process_group()
