"""DeepSpeed's engine with ZeRO stages 0 to 3."""

import os
import time

import torch.distributed as dist

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed

import chosen
import common

# DeepSpeed would compile a shared-memory all-reduce for inference, which training does not use.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def configuration(stage):
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": optimizer,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": stage > 0},
        "steps_per_print": 10**9,
    }


def trained(stage):
    if not dist.is_initialized():
        deepspeed.init_distributed(dist_backend=common.BACKEND, verbose=False)
    chosen.check()
    net = common.model(seed=dist.get_rank())
    own, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(), config=configuration(stage)
    )
    seconds = []
    for step in range(12):
        inputs, targets = common.batch(step, dist.get_rank())
        began = time.perf_counter()
        loss = common.loss_of(own(inputs), targets)
        own.backward(loss)
        own.step()
        seconds.append(time.perf_counter() - began)
    return common.mean_over_ranks(loss.item()), seconds[common.WARM_UP_STEPS :]


for stage in range(4):
    common.run(f"DeepSpeed, ZeRO stage {stage}", lambda: trained(stage))
dist.destroy_process_group()
