"""A worker of vLLM that accepts no communication of a model except through ringtree."""

import torch
import torch.distributed as dist
from vllm.distributed import get_pp_group, get_tp_group
from vllm.v1.worker.cpu_worker import CPUWorker

CALLS = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "gather"),
    *("send", "isend", "recv", "irecv"),
)


def refuse_activations(name):
    """Makes a function of torch.distributed raise an error if it moves floating-point numbers."""
    used = getattr(dist, name)

    def checked(*arguments, **more):
        given = [*arguments, *more.values()]
        groups = [each for each in given if isinstance(each, dist.ProcessGroup)]
        if any(torch.is_tensor(each) and each.is_floating_point() for each in given):
            for own in get_tp_group(), get_pp_group():
                assert not any(each in (own.device_group, own.cpu_group) for each in groups), name
        return used(*arguments, **more)

    setattr(dist, name, checked)


class RingtreeOnlyWorker(CPUWorker):
    def init_device(self):
        super().init_device()
        for name in CALLS:
            refuse_activations(name)
