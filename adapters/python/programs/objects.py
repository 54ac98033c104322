"""Collectives and messages of Python objects."""

import torch
import torch.distributed as dist

import common

rank, world = common.start()


def gathered():
    found = [None] * world
    dist.all_gather_object(found, {"rank": rank, "text": "y" * 1000 * rank})
    assert [len(each["text"]) for each in found] == [1000 * each for each in range(world)]
    return [each["rank"] for each in found], []


def scattered():
    own = [None]
    dist.scatter_object_list(own, [[each] for each in range(world)] if rank == 0 else None)
    assert own == [[rank]]
    return own, []


def sent():
    found = [torch.ones(3), "text"]
    if rank == 0:
        dist.send_object_list(found, 1)
    elif rank == 1:
        found = [None, None]
        dist.recv_object_list(found, 0)
    assert found[0].tolist() == [1.0] * 3 and found[1] == "text"
    return [found[0].sum().item(), found[1]], []


for case in gathered, scattered, sent:
    common.run(f"objects, {case.__name__}", case)
dist.destroy_process_group()
