"""mp.spawn: processes that find each other through a file, and do so twice."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

import common


def group_sum(rank, world, file):
    dist.init_process_group(
        common.BACKEND, init_method=f"file://{file}", rank=rank, world_size=world
    )
    numbers = torch.full((4,), float(rank))
    dist.all_reduce(numbers)
    dist.destroy_process_group()
    return numbers.sum().item()


def worker(rank, world, place):
    sums = [group_sum(rank, world, f"{place}/{name}") for name in ("first", "second")]
    common.report("mp.spawn, file://", sums, rank=rank)


# One process of the launcher suffices. It starts the others without the launcher's variables.
if __name__ == "__main__" and os.environ["RANK"] == "0":
    world = int(os.environ["WORLD_SIZE"])
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC", "MASTER_", "WORLD_")) or "RANK" in name:
            del os.environ[name]
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(worker, (world, place), world)
