"""DDP's communication hooks that approximate or quantize gradients."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

import common

rank, world = common.start()


def with_hook(hook, state):
    def case():
        net = DistributedDataParallel(common.model())
        net.register_comm_hook(state(), hook)
        found = common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)
        common.check_replicas(net)
        return found

    return case


def approximation():
    options = dict(matrix_approximation_rank=2, start_powerSGD_iter=4)
    return power_sgd.PowerSGDState(None, **options)


def whole_world():
    return dist.group.WORLD


halved = default_hooks.bf16_compress_wrapper(power_sgd.powerSGD_hook)
quantized = quantization_hooks.quantization_pertensor_hook
common.run("DDP, PowerSGD hook in f32", with_hook(power_sgd.powerSGD_hook, approximation))
common.run("DDP, PowerSGD hook in bf16", with_hook(halved, approximation))
common.run("DDP, quantization hook", with_hook(quantized, whole_world))
dist.destroy_process_group()
