"""FSDP2: fully_shard with its policies, hybrid sharding, clipping, and replicate."""

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

import common

rank, world = common.start()
line = init_device_mesh("cpu", (world,))


def sharded(mesh=line, **options):
    net = common.model()
    for layer in net:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def trained(net):
    return common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), rank)


def mixed_precision():
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    return trained(sharded(mp_policy=policy))


def hybrid():
    grid = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    return trained(sharded(grid))


def clipped():
    net = sharded()
    inputs, targets = common.batch(0, rank)
    common.loss_of(net(inputs), targets).backward()
    return clip_grad_norm_(net.parameters(), 0.1).full_tensor().item(), []


common.run("FSDP2", lambda: trained(sharded()))
common.run("FSDP2, mixed precision", mixed_precision)
common.run("FSDP2, no resharding", lambda: trained(sharded(reshard_after_forward=False)))
common.run("FSDP2, hybrid sharding", hybrid)
common.run("FSDP2, clipping", clipped)
common.run("FSDP2, replicate", lambda: trained(replicate(common.model())))
dist.destroy_process_group()
