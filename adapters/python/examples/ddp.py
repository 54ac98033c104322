"""Trains a classifier with DistributedDataParallel in the processes of a launcher.

    torchrun --standalone --nproc-per-node 2 adapters/python/examples/ddp.py
    ringtree run --nproc-per-node 2 -- python adapters/python/examples/ddp.py

Except for the name of the backend, the script is the same as for Gloo.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES, FEATURES, BATCH, STEPS = 4, 32, 64, 200


def batch(centers, random):
    """Returns points around the centers of the classes, and their classes."""
    classes = torch.randint(CLASSES, (BATCH,), generator=random)
    return centers[classes] + torch.randn(BATCH, FEATURES, generator=random), classes


def main():
    dist.init_process_group("ringtree")
    torch.manual_seed(0)
    centers = torch.randn(CLASSES, FEATURES)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Every rank has different points.
    random = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(STEPS):
        points, classes = batch(centers, random)
        loss = nn.functional.cross_entropy(model(points), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == STEPS - 1:
            dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step:3}: loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
