"""Messages: a ring, receives before sends, any sender, and tags in another order."""

import time

import torch
import torch.distributed as dist

import common

rank, world = common.start()
AFTER, BEFORE = (rank + 1) % world, (rank - 1) % world
STEPS = 100


def ring():
    """Measures all steps together, because a rank can be several steps ahead of another rank."""
    own, found = torch.full((65536,), float(rank)), torch.empty(65536)
    for step in range(-common.WARM_UP_STEPS, STEPS):
        if step == 0:
            began = time.perf_counter()
        ends = [dist.P2POp(dist.isend, own, AFTER), dist.P2POp(dist.irecv, found, BEFORE)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
    seconds = (time.perf_counter() - began) / STEPS
    assert found.eq(BEFORE).all()
    return found.sum().item(), [seconds]


def receive_first():
    own, found = torch.full((8,), float(rank)), torch.empty(8)
    for work in dist.irecv(found, BEFORE), dist.isend(own, AFTER):
        work.wait()
    assert found.eq(BEFORE).all()
    return found.sum().item(), []


def any_sender():
    one = torch.full((1,), float(rank))
    if rank > 0:
        return dist.send(one, 0), []
    return sorted((dist.recv(one), one.item()) for _ in range(world - 1)), []


def tags():
    numbers = [torch.full((4,), float(tag)) for tag in range(3)]
    if rank == 0:
        works = [dist.isend(each, 1, tag=tag) for tag, each in enumerate(numbers)]
    else:
        in_turn = reversed(range(3)) if rank == 1 else ()
        works = [dist.irecv(numbers[tag].zero_(), 0, tag=tag) for tag in in_turn]
    for work in works:
        work.wait()
    assert all(each.eq(tag).all() for tag, each in enumerate(numbers)) or rank > 1
    return sum(each.sum().item() for each in numbers), []


# The last case ends the group if messages must be received in the order in which they were sent.
for case in ring, receive_first, any_sender, tags:
    common.run(f"messages, {case.__name__.replace('_', ' ')}", case)
dist.destroy_process_group()
