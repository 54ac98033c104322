"""DTensor: a vocabulary split across ranks with loss_parallel, and redistribution."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel

import common

rank, world = common.start()
line = init_device_mesh("cpu", (world,))


def vocabulary():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(1000, 128), nn.Linear(128, 1000))
    first = parallel.RowwiseParallel(input_layouts=Replicate())
    last = parallel.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallel.parallelize_module(net, line, {"0": first, "1": last})
    inputs, targets = common.batch(0, 0)
    with parallel.loss_parallel():
        loss = nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
    gradients = sum(each.grad.full_tensor().norm() for each in net.parameters())
    return loss.full_tensor().item() + gradients.item(), []


def redistributed():
    torch.manual_seed(0)
    whole = torch.randn(7, 13)
    rows = distribute_tensor(whole, line, [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.full_tensor(), whole)
    return (columns @ columns.transpose(0, 1)).full_tensor().sum().item(), []


common.run("loss_parallel", vocabulary)
common.run("DTensor, redistribution", redistributed)
dist.destroy_process_group()
