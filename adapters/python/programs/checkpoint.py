"""Distributed checkpoints of an FSDP2 model: saved in the call, by a thread, and by a process."""

import tempfile
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType as Kind
from torch.distributed.fsdp import fully_shard

import common

WHOLE = state_dict.StateDictOptions(full_state_dict=True)
NAMES = "model_state_dict", "optim_state_dict"


def made():
    net = fully_shard(common.model())
    return net, torch.optim.AdamW(net.parameters(), 1e-3)


def state_of(net, optimizer):
    return dict(zip(NAMES, state_dict.get_state_dict(net, optimizer)))


def weights_of(net):
    return state_dict.get_model_state_dict(net, options=WHOLE).values()


def saved(net, optimizer, place, save):
    running = save(state_of(net, optimizer), checkpoint_id=place)
    expected = common.digest(weights_of(net))
    if hasattr(running, "result"):
        running.result()
    loaded = made()
    dcp.load(state := state_of(*loaded), checkpoint_id=place)
    state_dict.set_state_dict(*loaded, **state)
    assert common.digest(weights_of(loaded[0])) == expected
    return common.distance(weights_of(net), common.model().parameters()), []


if __name__ == "__main__":
    rank, world = common.start()
    net, optimizer = made()
    common.train(net, optimizer, rank, 4)
    ways = {
        "save": dcp.save,
        "async_save in a thread": partial(dcp.async_save, process_group=dist.new_group()),
        "async_save in a process": partial(dcp.async_save, async_checkpointer_type=Kind.PROCESS),
    }
    with tempfile.TemporaryDirectory() as own:
        folder = [own]  # that of rank 0
        dist.broadcast_object_list(folder)
        for name, way in ways.items():
            place = f"{folder[0]}/{name}"
            common.run(f"checkpoint, {name}", lambda: saved(net, optimizer, place, way))
        dist.barrier()
    dist.destroy_process_group()
