"""torchft: one replica per process, with a quorum for each step."""

import os
import time

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Optimizer

import common
import replicas

RANK, WORLD = replicas.RANK, replicas.WORLD


def trained():
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    server, address = replicas.lighthouse(store, min_replicas=WORLD)
    manager, own_store = replicas.manager(address, min_replica_size=WORLD)
    net = DistributedDataParallel(manager, common.model())
    optimizer = Optimizer(manager, torch.optim.SGD(net.parameters(), 0.1))
    seconds = []
    for step in range(12):
        inputs, targets = common.batch(step, RANK)
        began = time.perf_counter()
        optimizer.zero_grad()
        common.loss_of(net(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    found = common.digest(net.parameters())
    store.set(f"digest{RANK}", found)
    store.wait([f"digest{rank}" for rank in range(WORLD)])
    assert all(store.get(f"digest{rank}").decode() == found for rank in range(WORLD))
    total = common.distance(net.parameters(), common.model().parameters())
    manager.shutdown()
    del server, own_store
    return total, seconds[common.WARM_UP_STEPS :]


common.run("torchft", trained)
# torchft's threads would keep the process alive.
os._exit(0)
