"""torchrun --max-restarts: a rank is killed, and the second start trains to the end."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import common

is_first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
rank, world = common.start()
net = DistributedDataParallel(common.model(64, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
common.train(net, optimizer, rank, steps=4)
if is_first_start and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
loss, _ = common.train(net, optimizer, rank, steps=6)
dist.destroy_process_group()

alone = common.model(64, 1)
optimizer = torch.optim.SGD(alone.parameters(), 0.1)
common.train_on_all_data(alone, optimizer, world, steps=4)
expected = common.train_on_all_data(alone, optimizer, world, steps=6)
assert abs(loss - expected) < 1e-6 * expected, f"{loss} instead of {expected}"
common.report("torchrun, restart after a death", loss)
