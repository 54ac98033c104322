"""Compares torch.distributed's all-reduce with Gloo and with ringtree, in interleaved rounds.

The launcher decides on which hosts the ranks run. On emulated hosts, as root:

    cargo build --release -p ringtree-network
    export GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
    target/release/ringtree-network --hosts 4 --rate 1000 --delay-us 250 -- python between_hosts.py
"""

import statistics
import time

import torch
import torch.distributed as dist

ROUNDS = 3
# Bytes per call and calls per batch.
SIZES = [(8, 60), (1 << 10, 60), (16 << 10, 60), (64 << 10, 40), (256 << 10, 20), (1 << 20, 10)]


def batch_us(numbers, calls, group):
    """Runs a batch of calls and returns the slowest rank's time in microseconds per call."""
    dist.barrier(group)
    dist.all_reduce(numbers, group=group)
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(numbers, group=group)
    each = torch.tensor((time.perf_counter() - start) / calls * 1e6)
    dist.all_reduce(each, dist.ReduceOp.MAX)
    return each.item()


def main():
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "ringtree": dist.new_group(backend="ringtree")}
    if dist.get_rank() == 0:
        print("hosts,bytes,gloo_us,ringtree_us,ratio", flush=True)
    for size, calls in SIZES:
        numbers = torch.zeros(size // 4)
        times = {name: [] for name in groups}
        for turn in range(1 + ROUNDS):
            for name, group in groups.items():
                taken = batch_us(numbers, calls, group)
                if turn:  # the first round opens connections
                    times[name].append(taken)
        gloo, ringtree = (statistics.median(times[name]) for name in groups)
        if dist.get_rank() == 0:
            ranks = dist.get_world_size()
            print(f"{ranks},{size},{gloo:.0f},{ringtree:.0f},{ringtree / gloo:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
