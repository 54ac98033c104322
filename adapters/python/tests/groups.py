"""Programs with unusual default groups. `groups.py NAME` runs the function NAME on every rank."""

import sys

import torch
import torch.distributed as dist


def alongside_a_group_of_gpus():
    """The default group has no backend for tensors in host memory."""
    dist.init_process_group("cuda:gloo")
    group = dist.new_group(backend="ringtree")
    numbers = torch.ones(3)
    dist.all_reduce(numbers, group=group)
    assert numbers.tolist() == [dist.get_world_size()] * 3


def with_wrapped_backends():
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch wraps the backend of each group."""
    dist.init_process_group("ringtree")
    from ringtree import _backend
    from ringtree.torch import all_reduce_, communicator

    # The new group must use the connections of the default group.
    _backend.init = None
    group, numbers, ranks = dist.new_group(), torch.ones(3), dist.get_world_size()
    assert type(group._get_backend(torch.device("cpu"))).__name__ == "_ProcessGroupWrapper"
    for each in None, group:
        dist.all_reduce(numbers, group=each)
        assert all_reduce_(numbers, group=each) is numbers
        assert communicator(each).world_size == ranks
    assert numbers.tolist() == [ranks**4] * 3


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    dist.destroy_process_group()
