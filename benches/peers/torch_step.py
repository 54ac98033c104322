"""Measures the step of `examples/step_time` in PyTorch's DistributedDataParallel over Gloo.

The synthetic model is the same as there: forward and backward sleep to a fixed timetable, all
gradients of a layer become ready together, and there is no optimizer. DDP uses its default
settings: buckets of 25 MiB, the first one of 1 MiB. Start this program as one rank of several, with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Rank 0 prints a row of the same CSV as `step_time
measure`.
"""

import argparse
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

PERIOD = 101  # values repeat after this many elements, as in the Rust program


class Timetable:
    def __init__(self, forward_s, backward_s, layers):
        self.forward_s = forward_s
        self.layer_s = backward_s / layers
        self.layers = layers
        self.start = 0.0

    def sleep_until(self, after_s):
        left = self.start + after_s - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def after_backward_of(self, layer):
        self.sleep_until(self.forward_s + (self.layers - layer) * self.layer_s)


class LayerFunction(torch.autograd.Function):
    """Returns its input. The backward function sleeps and then provides the layer's gradients."""

    @staticmethod
    def forward(context, passed, layer, *parameters):
        context.layer = layer
        return passed.view_as(passed)

    @staticmethod
    def backward(context, gradient):
        layer = context.layer
        layer.timetable.after_backward_of(layer.number)
        # Nothing else refers to these aliases, so autograd takes them without a copy.
        return (gradient, None, *[one.detach() for one in layer.gradients])


class Layer(torch.nn.Module):
    def __init__(self, number, weights, elements, timetable):
        super().__init__()
        self.number, self.timetable = number, timetable
        bias = math.isqrt(elements)
        sizes = [elements - bias, bias] * weights
        self.tensors = torch.nn.ParameterList(torch.zeros(size) for size in sizes)
        self.gradients = [torch.zeros(size) for size in sizes]

    def forward(self, passed):
        return LayerFunction.apply(passed, self, *self.tensors)


class Model(torch.nn.Module):
    def __init__(self, options, timetable):
        super().__init__()
        elements = options.parameters // (options.layers * options.weights)
        self.timetable = timetable
        self.layers = torch.nn.ModuleList(
            Layer(number, options.weights, elements, timetable) for number in range(options.layers)
        )
        length = elements + PERIOD
        self.pool = (torch.arange(length) * 37 % PERIOD).float()

    def values(self):
        """Yields each gradient's tensor with its values on rank 0. Rank r adds r to each value."""
        gradients = [one for layer in self.layers for one in layer.gradients]
        for number, gradient in enumerate(gradients):
            start = number * 13 % PERIOD
            yield gradient, self.pool[start : start + gradient.numel()]

    def forward(self, passed):
        self.timetable.sleep_until(self.timetable.forward_s)
        for layer in self.layers:
            passed = layer(passed)
        return passed


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--weights", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--backward-ms", type=float)
    parser.add_argument("--forward-ms", type=float)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def median_ms(times):
    """Returns the median over all steps of the slowest rank's time."""
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist()) * 1e3


def one_step(ddp, timetable):
    ddp.zero_grad(set_to_none=True)
    start_of_model = torch.zeros(1, requires_grad=True)
    dist.barrier()
    timetable.start = time.perf_counter()
    ddp(start_of_model).sum().backward()
    return time.perf_counter() - timetable.start


def communicate(whole):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(whole)
    took = time.perf_counter() - start
    whole.fill_(1.0)
    return took


def fill(model, rank):
    for gradient, values in model.values():
        torch.add(values, rank, out=gradient)


def check(model, world_size):
    """Checks that the gradients are averages, also after more steps: averaging equal gradients
    changes nothing."""
    average = (world_size - 1) / 2
    tensors = [one for layer in model.layers for one in layer.tensors]
    for tensor, (_, values) in zip(tensors, model.values()):
        if not torch.equal(tensor.grad, values + average):
            sys.exit("a gradient has a wrong average")


def main():
    options = read_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    elements = options.parameters // (options.layers * options.weights)
    gradient_bytes = 4 * elements * options.layers * options.weights
    bound_ms = 2 * (world_size - 1) / world_size * gradient_bytes * 8e-6
    backward_ms = bound_ms if options.backward_ms is None else options.backward_ms
    forward_ms = backward_ms / 3 if options.forward_ms is None else options.forward_ms
    timetable = Timetable(forward_ms / 1e3, backward_ms / 1e3, options.layers)
    model = Model(options, timetable)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    whole = torch.ones(gradient_bytes // 4)
    steps, communications = [], []
    fill(model, rank)
    for step in range(options.warm_up + options.steps):
        step_time = one_step(ddp, timetable)
        check(model, world_size)
        communication = communicate(whole)
        if step >= options.warm_up:
            steps.append(step_time)
            communications.append(communication)
    step_ms, communication_ms = median_ms(steps), median_ms(communications)
    if rank == 0:
        logged = ddp._get_ddp_logging_data()
        sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes", "")
        sizes = [int(size) for size in str(sizes).split(",") if size.strip()]
        if options.verbose:
            for key in ("has_rebuilt_buckets", "rebuilt_bucket_sizes", "avg_backward_compute_time",
                        "avg_backward_comm_time", "avg_backward_compute_comm_overlap_time"):
                print(key, logged.get(key), file=sys.stderr)
        print(f"pytorch,{world_size},gloo,default,{max(sizes, default=0)},{len(sizes)},"
              f"{gradient_bytes},{forward_ms:.2f},{backward_ms:.2f},{step_ms:.2f},"
              f"{step_ms - forward_ms - backward_ms:.2f},{communication_ms:.2f}", flush=True)
    dist.barrier()
    # Skip destructors, because a peer that exits while they run can look like a failure.
    os._exit(0)


if __name__ == "__main__":
    main()
