"""Times one collective of Gloo or DeepSpeed in the same way as `ringtree bench --in-place`.

    torch_peer.py LIBRARY RANKS COLLECTIVE BYTES...
    torch_peer.py build deepspeed

LIBRARY is gloo or deepspeed. Gloo is called through PyTorch. DeepSpeed has one collective in shared
memory, `inference_all_reduce`; `build` compiles it, which takes a minute. COLLECTIVE is all-reduce,
broadcast, reduce, all-gather or reduce-scatter. Elements are f32, the operator is sum, and the root
is rank 0. BYTES is the size of the complete buffer. For all-gather and reduce-scatter, this buffer
contains the blocks of all ranks. Rank 0 prints CSV.

The time of a batch is the mean time per call on the slowest rank. The median batch is reported. One
checked call runs before the batches and one after each batch. Batches run on zeros, so that
repeated sums do not overflow. Times include the overhead of Python and PyTorch.

Exit code: 0 (success), 1 (wrong results, or a failure), 2 (wrong usage), or 3 (the library lacks
the collective).
"""

import os
import statistics
import sys
import tempfile
import time

BATCHES = 5
CALLS_MIN = 3
CALLS_MAX = 200_000
GROWTH = 16  # factor between trials that determine the calls per batch
POINT_S = 0.5  # total time of all batches of a size
PERIOD = 17  # inputs of checked calls repeat after this many elements
COLLECTIVES = ("all-reduce", "broadcast", "reduce", "all-gather", "reduce-scatter")
LIBRARIES = ("gloo", "deepspeed")
ABSENT = 3


class Absent(Exception):
    """Raised if the library lacks the collective."""


class Point:
    """A buffer of one size, and the call on it."""

    def __init__(self, torch, library, collective, byte_count):
        self.torch, self.gloo, self.collective = torch, torch.distributed, collective
        self.ranks, self.rank = self.gloo.get_world_size(), self.gloo.get_rank()
        self.bytes = byte_count
        self.count = max(byte_count // 4, 1)
        is_blocked = collective in ("all-gather", "reduce-scatter")
        self.block = max(self.count // self.ranks, 1) if is_blocked else self.count
        if is_blocked:
            self.count = self.block * self.ranks
        self.buffer = torch.zeros(self.count)
        self.own = slice(self.rank * self.block, (self.rank + 1) * self.block)
        # PyTorch needs a separate buffer for this rank's block.
        self.share = torch.zeros(self.block) if is_blocked else None
        self.call = self.chosen_call() if library == "gloo" else self.deepspeed_call()

    def chosen_call(self):
        gloo, buffer, share = self.gloo, self.buffer, self.share
        if self.collective == "all-gather":
            try:
                gloo.all_gather_into_tensor(buffer, share)
            except (AttributeError, RuntimeError):
                # Older versions of PyTorch gather only into a list of blocks.
                blocks = list(buffer.chunk(self.ranks))
                return lambda: gloo.all_gather(blocks, share)
        return {
            "all-reduce": lambda: gloo.all_reduce(buffer),
            "broadcast": lambda: gloo.broadcast(buffer, 0),
            "reduce": lambda: gloo.reduce(buffer, 0),
            "all-gather": lambda: gloo.all_gather_into_tensor(buffer, share),
            "reduce-scatter": lambda: gloo.reduce_scatter_tensor(share, buffer),
        }[self.collective]

    def deepspeed_call(self):
        if self.collective != "all-reduce":
            raise Absent
        operation, buffer = self.torch.ops.deepspeed.inference_all_reduce_, self.buffer
        return lambda: operation(buffer)

    def input(self, owner):
        """Returns a rank's input for a checked call: small integers, so that sums are exact."""
        indices = self.torch.arange(self.count)
        return ((indices * 5 + owner * 3) % PERIOD).float()

    def checked_call(self):
        """Issues one call on predictable inputs. Returns this rank's number of wrong elements."""
        self.buffer.copy_(self.input(self.rank))
        if self.collective == "all-gather":
            self.share.copy_(self.buffer[self.own])
        try:
            self.call()
        except (AttributeError, RuntimeError) as error:
            if any(word in str(error) for word in ("support", "implement", "no attribute")):
                raise Absent from error
            raise
        found = self.buffer
        if self.collective == "broadcast":
            expected = self.input(0)
        elif self.collective == "all-gather":
            expected = self.torch.cat([self.input(owner)[owner * self.block :][: self.block]
                                       for owner in range(self.ranks)])
        else:
            expected = sum(self.input(owner) for owner in range(self.ranks))
        if self.collective == "reduce" and self.rank != 0:
            return 0
        if self.collective == "reduce-scatter":
            found, expected = self.share, expected[self.own]
        return int((found != expected).sum())

    def batch(self, calls):
        """Returns the slowest rank's mean time per call in seconds, on every rank."""
        self.buffer.zero_()
        if self.share is not None:
            self.share.zero_()
        call, barrier, clock = self.call, self.gloo.barrier, time.perf_counter
        barrier()
        if self.collective in ("broadcast", "reduce"):
            # Without barriers, the root or the other ranks could run ahead.
            elapsed_s = 0.0
            for _ in range(calls):
                barrier()
                start_s = clock()
                call()
                elapsed_s += clock() - start_s
        else:
            start_s = clock()
            for _ in range(calls):
                call()
            elapsed_s = clock() - start_s
        return self.over_ranks(elapsed_s / calls, self.gloo.ReduceOp.MAX)

    def over_ranks(self, number, operator):
        value = self.torch.tensor([number], dtype=self.torch.float64)
        self.gloo.all_reduce(value, operator)
        return value.item()

    def choose_calls(self):
        calls = CALLS_MIN
        while True:
            wanted = int(min(POINT_S / BATCHES / max(self.batch(calls), 1e-9), CALLS_MAX))
            if wanted <= calls * GROWTH:
                return max(wanted, CALLS_MIN)
            calls *= GROWTH

    def measure(self):
        """Prints one CSV row. Returns the number of wrong elements on all ranks."""
        wrong = self.checked_call()
        calls = self.choose_calls()
        times_s = []
        for _ in range(BATCHES):
            times_s.append(self.batch(calls))
            wrong += self.checked_call()
        wrong = int(self.over_ranks(wrong, self.gloo.ReduceOp.SUM))
        if self.rank == 0:
            time_us = statistics.median(times_s) * 1e6
            print(self.collective, self.ranks, self.bytes, self.count, calls, f"{time_us:.4f}",
                  wrong, sep=",", flush=True)
        return wrong


def deepspeed_library():
    """Returns DeepSpeed's module with the all-reduce. Compiles it if it has not been compiled."""
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder
    return ShareMemCommBuilder().load(verbose=False)


def start_deepspeed(gloo):
    ranks, rank, job = gloo.get_world_size(), gloo.get_rank(), str(os.getppid())
    # DeepSpeed takes these from its launcher's variables, and names its segments after them.
    os.environ.update(LOCAL_SIZE=str(ranks), MASTER_ADDR="compare", MASTER_PORT=job)
    deepspeed_library().initialize(ranks, rank)
    gloo.barrier()
    # DeepSpeed does not remove its segments.
    os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_compare_{job}_{rank}")


def one_rank(rank, ranks, meeting, library, collective, sizes):
    """Runs the measurements as one of the ranks. Returns the exit code."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank,
                                         world_size=ranks)
    if library == "deepspeed":
        start_deepspeed(torch.distributed)
    if rank == 0:
        print("collective,ranks,bytes,count,iters,time_us,wrong", flush=True)
    try:
        wrong = sum(Point(torch, library, collective, size).measure() for size in sizes)
    except Absent:
        return ABSENT
    torch.distributed.barrier()
    return 1 if wrong else 0


def guarded_rank(*arguments):
    """Runs one rank, prints an error in at most one line, and always exits the process."""
    code = 1
    try:
        code = one_rank(*arguments)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        print(f"torch_peer.py: {type(error).__name__}: {first}", file=sys.stderr)
    finally:
        # Skip PyTorch's destructors, because some wait for ranks that have exited.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(arguments):
    if arguments == ["build", "deepspeed"]:
        deepspeed_library()
        return 0
    usage = "usage: torch_peer.py gloo|deepspeed RANKS COLLECTIVE BYTES..."
    library, collective = [*arguments, "", "", ""][0:3:2]
    numbers = arguments[1:2] + arguments[3:]
    is_understood = len(numbers) >= 2 and all(text.isdigit() for text in numbers)
    if not is_understood or library not in LIBRARIES or collective not in COLLECTIVES:
        print(usage, file=sys.stderr)
        return 2
    ranks, *sizes = map(int, numbers)
    with tempfile.TemporaryDirectory() as folder:
        # Fork before PyTorch starts threads.
        processes = []
        for rank in range(ranks):
            process = os.fork()
            if process == 0:
                if os.environ.get("SESSIONS"):
                    os.setsid()
                meeting = os.path.join(folder, "meeting")
                guarded_rank(rank, ranks, meeting, library, collective, sizes)
            processes.append(process)
        codes = []
        while len(codes) < ranks:
            process, status = os.wait()
            processes.remove(process)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1] != 0:
                # Kill the other ranks, because they would wait for the failed one.
                for other in processes:
                    os.kill(other, 15)
    if ABSENT in codes:
        return ABSENT
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
