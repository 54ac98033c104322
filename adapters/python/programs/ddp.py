"""DDP: plain, a static graph with small buckets, gradient accumulation, and uneven inputs."""

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import common

rank, world = common.start()


def plain():
    # DDP must copy the weights of rank 0 to all ranks.
    net = DistributedDataParallel(common.model(seed=rank))
    return common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), rank)


def static_graph():
    options = dict(static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=1)
    net = DistributedDataParallel(common.model(), **options)
    return common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), rank)


def accumulation():
    net = DistributedDataParallel(common.model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    seconds = []
    for step in range(10):
        began = time.perf_counter()
        with net.no_sync():
            for part in range(3):
                inputs, targets = common.batch(4 * step + part, rank)
                common.loss_of(net(inputs), targets).backward()
        inputs, targets = common.batch(4 * step + 3, rank)
        loss = common.loss_of(net(inputs), targets)
        loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return common.mean_over_ranks(loss.item()), seconds[2:]


def uneven():
    net = DistributedDataParallel(common.model(64, 1))
    with Join([net]):
        common.train_alone(net, torch.optim.SGD(net.parameters(), 0.1), rank, 4 + rank)
    common.check_replicas(net)
    return common.distance(net.parameters(), common.model(64, 1).parameters()), []


common.run("DDP", plain)
common.run("DDP, static graph, 1 MiB buckets", static_graph)
common.run("DDP, no_sync and clipping", accumulation)
common.run("DDP, Join", uneven)
dist.destroy_process_group()
