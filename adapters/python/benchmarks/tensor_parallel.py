"""Measures four implementations of the all-reduces of a model split across processes of one host.

    torchrun --standalone --nproc-per-node 2 adapters/python/benchmarks/tensor_parallel.py

Each layer of such a model issues two all-reduces of bf16, of 16 to 256 KiB each while the model
generates one token at a time. The interleaved rounds measure torch's Gloo, the backend "ringtree",
`ringtree.torch.all_reduce_`, and shared_memory.cpp, which is called through ctypes and resembles
the all-reduce of engines that serve models. The time of a round is that of the slowest rank. The
result is the median of the rounds. With `--idle SECONDS`, the ranks first sleep for this time and
print the processor time used meanwhile and the latency of the first call.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist

from ringtree.torch import all_reduce_

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, CALLS_PER_LAYER = 32, 2
SIZES = [16 << 10, 64 << 10, 256 << 10]


def engine_style():
    """Returns the all-reduce of shared_memory.cpp, compiled with this host's compiler."""
    name = [None]
    if dist.get_rank() == 0:
        folder = tempfile.mkdtemp()
        name = [os.path.join(folder, "shared_memory.so")]
        source = os.path.join(HERE, "shared_memory.cpp")
        flags = "-O3 -march=native -std=c++17 -shared -fPIC".split()
        subprocess.run(["c++", *flags, "-o", name[0], source], check=True)
    dist.broadcast_object_list(name)
    library = ctypes.CDLL(name[0])
    segment = f"/ringtree-benchmark-{os.environ['MASTER_PORT']}".encode()
    if library.shared_memory_open(segment, dist.get_rank(), dist.get_world_size()) != 0:
        raise OSError("the segment of the comparison cannot be mapped")
    dist.barrier()
    library.shared_memory_close(segment)
    call = library.shared_memory_all_reduce
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return lambda tensor: call(tensor.data_ptr(), tensor.numel())


def token_us(act, tensor):
    """Runs the calls of one token and returns the slowest rank's microseconds per call."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(LAYERS * CALLS_PER_LAYER):
        act(tensor)
    own = (time.perf_counter() - start) / (LAYERS * CALLS_PER_LAYER) * 1e6
    slowest = torch.tensor([own], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def idle(seconds):
    """Prints the processor time used while idle and the latency of the first call afterward. The
    latency includes the delay from ranks that wake at different times."""
    tensor = torch.zeros(8 << 10, dtype=torch.bfloat16)
    for _ in range(100):
        all_reduce_(tensor)
    before = time.process_time()
    time.sleep(seconds)
    used_ms = (time.process_time() - before) * 1e3
    start = time.perf_counter()
    all_reduce_(tensor)
    first_us = (time.perf_counter() - start) * 1e6
    print(
        f"rank {dist.get_rank()}: {used_ms:.1f} ms of processor time in {seconds:.0f} s, then a "
        f"call in {first_us:.0f} us",
        flush=True,
    )


def main():
    """Parses the arguments and prints one line per size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--idle", type=float, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("ringtree")
    gloo = dist.new_group(backend="gloo")
    if options.idle:
        idle(options.idle)
    ways = {
        "gloo": lambda tensor: dist.all_reduce(tensor, group=gloo),
        "backend": dist.all_reduce,
        "direct": all_reduce_,
        "engine": engine_style(),
    }
    if dist.get_rank() == 0:
        print(f"all-reduce of bf16 over {dist.get_world_size()} ranks, microseconds per call")
        names = "".join(f"{name:>10}" for name in ways)
        print(f"{'bytes':>8}{names}  direct/gloo  direct/engine")
    for size in SIZES:
        tensor = torch.zeros(size // 2, dtype=torch.bfloat16)
        times = {name: [] for name in ways}
        for turn in range(options.rounds + 1):
            for name, act in ways.items():
                time_us = token_us(act, tensor)
                # The first round is a warm-up.
                times[name] += [time_us] if turn else []
        medians = {name: statistics.median(each) for name, each in times.items()}
        if dist.get_rank() == 0:
            ratios = [medians["direct"] / medians[other] for other in ("gloo", "engine")]
            print(
                f"{size:>8}" + "".join(f"{each:10.1f}" for each in medians.values())
                + f"{ratios[0]:13.2f}{ratios[1]:15.2f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
