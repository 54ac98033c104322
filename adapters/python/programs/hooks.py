"""DDP's communication hooks that compress gradients or skip their reduction."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.nn.parallel import DistributedDataParallel

import common

rank, world = common.start()


def trained(register):
    net = DistributedDataParallel(common.model(), bucket_cap_mb=1)
    register(net)
    return common.train(net, torch.optim.SGD(net.parameters(), 0.1), rank)


def with_hook(hook, state=lambda: None):
    return lambda: trained(lambda net: net.register_comm_hook(state(), hook))


def fp16_in_cpp():
    hook = dist.BuiltinCommHookType.FP16_COMPRESS
    return trained(lambda net: net._register_builtin_comm_hook(hook))


def local_steps():
    return local_sgd.PostLocalSGDState(None, dist.new_subgroups(world)[0], 4)


common.run("DDP, all-reduce hook", with_hook(default_hooks.allreduce_hook))
common.run("DDP, bf16 hook", with_hook(default_hooks.bf16_compress_hook))
common.run("DDP, fp16 hook", with_hook(default_hooks.fp16_compress_hook))
common.run("DDP, fp16 hook in C++", fp16_in_cpp)
common.run("DDP, post-local SGD hook", with_hook(local_sgd.post_localSGD_hook, local_steps))
# Its steps do not communicate, so there is nothing to measure.
without = with_hook(debugging_hooks.noop_hook)
common.run("DDP, hook that does nothing", lambda: (without()[0], []))
dist.destroy_process_group()
