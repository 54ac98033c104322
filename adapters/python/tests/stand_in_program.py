"""A program for two ranks that knows only Gloo. Prints the backend's class, a sum and its arguments."""

import sys

import torch
import torch.distributed as dist

if __name__ == "__main__":
    # In torch 2.14, a group's device must be an accelerator.
    is_old = torch.__version__.startswith("2.14.")
    dist.init_process_group("gloo", device_id=None if is_old else torch.device("cpu:0"))
    assert dist.get_backend() == "gloo"
    # Each rank is missing from one of the groups.
    alone = [dist.new_group([0]), dist.new_group([1])][dist.get_rank()]
    one = torch.full((1,), float(dist.get_rank()))
    dist.all_reduce(one)
    dist.all_reduce(one, group=alone)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    print(type(backend).__name__, one.item(), *sys.argv[1:])
    dist.destroy_process_group()
