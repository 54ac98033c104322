"""Pipeline parallelism with four schedules."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import common

rank, world = common.start()
STAGE = lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))


def scheduled(schedule, per_rank):
    torch.manual_seed(0)
    count = per_rank * world
    parts = [STAGE() for _ in range(count)]
    stages = [
        pipelining.PipelineStage(parts[place], place, count, torch.device("cpu"))
        for place in range(rank, count, world)
    ]
    stages = stages if per_rank > 1 else stages[0]
    return schedule(stages, n_microbatches=8, loss_fn=nn.functional.mse_loss), parts


def trained(schedule, per_rank=1):
    steps, parts = scheduled(schedule, per_rank)
    own = [each for part in parts[rank::world] for each in part.parameters()]
    optimizer = torch.optim.SGD(own, 0.1)

    def step(at):
        generator = torch.Generator().manual_seed(at)
        inputs, targets = (torch.randn(64, 256, generator=generator) for _ in range(2))
        losses = []
        arguments = (inputs,) if rank == 0 else ()
        options = dict(target=targets, losses=losses) if rank == world - 1 else {}
        steps.step(*arguments, **options)
        optimizer.step()
        optimizer.zero_grad()
        return losses

    losses, seconds = common.timed(step, 12)
    last = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(last, world - 1)
    return last.item(), seconds


common.run("pipeline, GPipe", lambda: trained(pipelining.ScheduleGPipe))
common.run("pipeline, 1F1B", lambda: trained(pipelining.Schedule1F1B))
common.run("pipeline, interleaved", lambda: trained(pipelining.ScheduleInterleaved1F1B, 2))
common.run("pipeline, zero bubble", lambda: trained(pipelining.ScheduleInterleavedZeroBubble, 2))
dist.destroy_process_group()
