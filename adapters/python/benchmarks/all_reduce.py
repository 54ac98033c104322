"""Compares the all-reduces of ringtree and of torch's Gloo in one job, in interleaved rounds.

    torchrun --standalone --nproc-per-node 2 adapters/python/benchmarks/all_reduce.py

Every round measures both backends on the same tensor. For each, it runs a barrier and then a batch
of calls, and takes the time of the slowest rank. The program prints the medians of the rounds in
microseconds per call, and their ratio. With `--asynchronous`, it starts each call with
`async_op=True` and then waits for it.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

UNITS = {"K": 1 << 10, "M": 1 << 20}


def in_bytes(size):
    """Converts a size such as 4M to bytes."""
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)


def batch_us(group, tensor, calls, is_async):
    """Runs a batch of calls and returns this rank's time in microseconds per call."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(calls):
        work = dist.all_reduce(tensor, group=group, async_op=is_async)
        if is_async:
            work.wait()
    return (time.perf_counter() - start) / calls * 1e6


def slowest(group, time_us):
    """Returns the largest of all ranks' times."""
    tensor = torch.tensor([time_us], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return tensor.item()


def measure(groups, size, options):
    """Returns the median time of each backend by name."""
    tensor = torch.zeros(max(size // options.dtype.itemsize, 1), dtype=options.dtype)
    calls = max(2, min(500, (8 << 20) // (size + 4096)))
    times = {name: [] for name in groups}
    for turn in range(options.rounds + 1):
        for name, group in groups.items():
            time_us = slowest(group, batch_us(group, tensor, calls, options.asynchronous))
            # The first round is a warm-up.
            times[name] += [time_us] if turn else []
    return {name: statistics.median(each) for name, each in times.items()}


def main():
    """Parses the arguments and prints one line per size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="8,1K,16K,64K,256K,1M,4M,16M,64M")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    # Each rank uses one core.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "ringtree": dist.new_group(backend="ringtree")}
    if dist.get_rank() == 0:
        print(f"all-reduce of {options.dtype} over {dist.get_world_size()} ranks, microseconds")
        print(f"{'bytes':>8} {'gloo':>12} {'ringtree':>12} {'ratio':>7}")
    for size in options.sizes.split(","):
        medians = measure(groups, in_bytes(size), options)
        if dist.get_rank() == 0:
            ratio = medians["ringtree"] / medians["gloo"]
            line = f"{size:>8} {medians['gloo']:12.1f} {medians['ringtree']:12.1f} {ratio:7.2f}"
            print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
