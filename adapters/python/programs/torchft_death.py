"""torchft: the last replica is killed in a step, and the others continue."""

import os
import signal
import subprocess
import sys

import torch
import torch.distributed as dist


def start_replicas():
    """Starts the replicas, because torchrun would stop all of them when one is killed."""
    kept = {key: value for key, value in os.environ.items() if "ELASTIC" not in key}
    ranks = range(int(kept["WORLD_SIZE"]))
    command = [sys.executable, "-u", __file__]
    started = [subprocess.Popen(command, env={**kept, "RANK": str(rank)}) for rank in ranks]
    return [each.wait() for each in started]


def train_with_death(net, optimizer, rank, world):
    for step in range(14):
        inputs, targets = common.batch(step, rank)
        optimizer.zero_grad()
        loss = common.loss_of(net(inputs), targets)
        if step == 5 and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()


def trained():
    rank, world = replicas.RANK, replicas.WORLD
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    server, address = replicas.lighthouse(store, min_replicas=1, join_timeout_ms=500)
    manager, own_store = replicas.manager(address, min_replica_size=1, init_sync=False)
    net = torchft.DistributedDataParallel(manager, common.model())
    optimizer = torchft.Optimizer(manager, torch.optim.SGD(net.parameters(), 0.1))
    train_with_death(net, optimizer, rank, world)
    found, others = common.digest(net.parameters()), range(world - 1)
    store.set(f"digest{rank}", found)
    store.wait([f"digest{other}" for other in others])
    assert all(store.get(f"digest{other}").decode() == found for other in others)
    total = common.distance(net.parameters(), common.model().parameters())
    manager.shutdown()
    del server, own_store
    return total, []


if "TORCHELASTIC_RUN_ID" in os.environ:
    codes = start_replicas() if os.environ["RANK"] == "0" else []
    sys.exit(any(code not in (0, -signal.SIGKILL) for code in codes))
import torchft

import common
import replicas

common.run("torchft, a replica is killed", trained)
os._exit(0)
