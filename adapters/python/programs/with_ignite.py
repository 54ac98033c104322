"""ignite: auto_model, auto_optim, auto_dataloader, an engine with a metric, and collectives."""

import time

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.metrics import Average
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import chosen
import common


def batches():
    tokens = torch.randint(0, 1000, (240, 33), generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    return idist.auto_dataloader(dataset, batch_size=4 * idist.get_world_size(), shuffle=False)


def engine(net, optimizer, seconds):
    def step(_, batch):
        began = time.perf_counter()
        loss = common.loss_of(net(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        return loss.item()

    return Engine(step)


def trained():
    chosen.create_group_if_first()
    if not chosen.IS_FIRST:
        idist.initialize(common.BACKEND)
    chosen.check()
    net = idist.auto_model(common.model())
    assert isinstance(net, DistributedDataParallel), "auto_model has not wrapped the model in DDP"
    optimizer = idist.auto_optim(torch.optim.SGD(net.parameters(), 0.1))
    seconds = []
    own, mean = engine(net, optimizer, seconds), Average()
    mean.attach(own, "mean")
    own.run(batches(), 1)
    own_rank, world = idist.get_rank(), idist.get_world_size()
    assert idist.all_gather(f"rank {own_rank}") == [f"rank {rank}" for rank in range(world)]
    assert idist.broadcast(torch.full((2,), float(own_rank)), 0).tolist() == [0.0, 0.0]
    found = own.state.metrics["mean"]
    idist.finalize()
    return found, seconds[common.WARM_UP_STEPS :]


common.run("ignite", trained)
