"""Lightning's Fabric: backward, clipping, and its collectives."""

import os
import time

import lightning
import torch
from lightning.fabric.strategies import DDPStrategy

import chosen
import common


def use_other_calls(own, loss):
    assert own.broadcast({"rank": own.global_rank}) == {"rank": 0}
    every = own.all_gather({"rank": torch.tensor(own.global_rank)})["rank"]
    assert every.tolist() == list(range(own.world_size))
    own.barrier()
    return own.all_reduce(loss).item()


def trained():
    strategy = DDPStrategy(process_group_backend=common.BACKEND)
    devices = int(os.environ["WORLD_SIZE"])
    own = lightning.Fabric(accelerator="cpu", devices=devices, strategy=strategy)
    own.launch()
    chosen.check()
    net = common.model()
    net, optimizer = own.setup(net, torch.optim.AdamW(net.parameters(), 1e-3))
    seconds = []
    for step in range(15):
        inputs, targets = common.batch(step, own.global_rank)
        began = time.perf_counter()
        loss = common.loss_of(net(inputs), targets)
        own.backward(loss)
        own.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return use_other_calls(own, loss.detach()), seconds[common.WARM_UP_STEPS :]


common.run("Lightning Fabric", trained)
