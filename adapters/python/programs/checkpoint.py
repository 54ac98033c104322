"""Distributed checkpoints of an FSDP2 model: saved in the call, by a thread, and by a process."""

import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

import common


def made():
    net = fully_shard(common.model())
    return net, torch.optim.AdamW(net.parameters(), 1e-3)


def state_of(net, optimizer):
    return dict(zip(("model", "optimizer"), state_dict.get_state_dict(net, optimizer)))


def digest_of(net):
    whole = state_dict.StateDictOptions(full_state_dict=True)
    return common.digest(state_dict.get_model_state_dict(net, options=whole).values())


def saved(net, optimizer, place, save):
    began = time.perf_counter()
    running = save(state_of(net, optimizer), checkpoint_id=place)
    expected = digest_of(net)
    if running is not None and hasattr(running, "result"):
        running.result()
    seconds = time.perf_counter() - began
    loaded = made()
    state = state_of(*loaded)
    dcp.load(state, checkpoint_id=place)
    found = dict(model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    state_dict.set_state_dict(*loaded, **found)
    assert digest_of(loaded[0]) == expected
    return expected, [seconds]


if __name__ == "__main__":
    rank, world = common.start()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    net, optimizer = made()
    common.train(net, optimizer, rank, 4)
    ways = {
        "save": dcp.save,
        "async_save in a thread": lambda *a, **k: dcp.async_save(*a, **k, process_group=own),
        "async_save in a process": lambda *a, **k: dcp.async_save(
            *a, **k, async_checkpointer_type=AsyncCheckpointerType.PROCESS
        ),
    }
    own = dist.new_group()
    for name, way in ways.items():
        place = f"{folder[0]}/{name}"
        common.run(f"checkpoint, {name}", lambda: saved(net, optimizer, place, way))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()
