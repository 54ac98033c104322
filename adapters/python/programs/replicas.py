"""Manager, process group and lighthouse of torchft, for the programs that use it."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

import common

if common.BACKEND != "gloo":
    from ringtree.torch import new_backend

PATIENCE = timedelta(seconds=20)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class ProcessGroupRingtree(ProcessGroupWrapper):
    """Like torchft's ProcessGroupGloo, for ringtree."""

    def _create_pg(self, store, rank, world):
        backend = new_backend(store, rank, world, PATIENCE)
        group = dist.ProcessGroup(store, rank, world)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        group._register_backend(torch.device("cpu"), kind, backend)
        return group

    def getBackendName(self):
        return "ringtree"


def lighthouse(store, **options):
    """Starts a lighthouse on rank 0. Returns it (keep it alive), and its address on all ranks."""
    server = None
    if RANK == 0:
        server = LighthouseServer(bind="[::]:0", **options)
        store.set("lighthouse", server.address().replace(socket.gethostname(), "localhost"))
    return server, store.get("lighthouse").decode()


def manager(address, **options):
    own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    kind = ProcessGroupGloo if common.BACKEND == "gloo" else ProcessGroupRingtree
    state = dict(load_state_dict=lambda _: None, state_dict=dict, use_async_quorum=False)
    place = dict(store_addr="localhost", store_port=own.port, rank=0, world_size=1)
    named = dict(replica_id=f"replica{RANK}_", lighthouse_addr=address, timeout=PATIENCE)
    found = Manager(pg=kind(timeout=PATIENCE), **state, **place, **named, **options)
    return found, own
