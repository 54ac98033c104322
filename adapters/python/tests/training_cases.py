"""A program for several ranks: common uses of a process group."""

import functools
import gc
import os

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed._functional_collectives as functional
import torch.distributed.rpc as rpc
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel

from cases import run_all

torch.set_num_threads(1)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def network(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 4))


def digits(module):
    """Returns the bytes of all weights."""
    return b"".join(each.detach().numpy().tobytes() for each in module.parameters())


def agree(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    assert all(each == found[0] for each in found), found


def train(hook=None, steps=4, optimizer=None, **settings):
    """Trains from different weights on different data. All replicas must end with the same bits."""
    rank = dist.get_rank()
    model = DistributedDataParallel(network(rank), bucket_cap_mb=0.01, **settings)
    if hook is not None:
        hook(model)
    make = optimizer or functools.partial(torch.optim.SGD, lr=0.1)
    optimizer = make(model.parameters())
    torch.manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    agree(digits(model))
    return model


@case
def data_parallel():
    train()


@case
def data_parallel_gradients():
    """Compares the gradients with those of one process that has all the data."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network(1), bucket_cap_mb=0.01)
    alone = network(1)
    batch = torch.randn(8 * ranks, 16, generator=torch.Generator().manual_seed(3))
    model(batch.chunk(ranks)[rank]).square().mean().backward()
    alone(batch).square().mean().backward()
    for one, other in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(one.grad, other.grad)


@case
def data_parallel_without_sync():
    rank = dist.get_rank()
    model = DistributedDataParallel(network(0), bucket_cap_mb=0.01)
    with model.no_sync():
        model(torch.randn(8, 16) + rank).square().mean().backward()
    model(torch.randn(8, 16) + rank).square().mean().backward()
    agree(b"".join(each.grad.numpy().tobytes() for each in model.parameters()))


@case
def data_parallel_with_unused_parameters():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, numbers, goes_left):
            return (self.left if goes_left else self.right)(numbers)

    torch.manual_seed(0)
    model = DistributedDataParallel(Half(), find_unused_parameters=True)
    for step in range(4):
        model(torch.randn(2, 4), (step + dist.get_rank()) % 2 == 0).sum().backward()
    agree(b"".join(each.grad.numpy().tobytes() for each in model.parameters()))


@case
def hook_of_half_precision():
    train(lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook))


@case
def builtin_hooks_of_torch():
    """These hooks are written in C++ and read the value of a work's future."""
    for hook in dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS:
        train(lambda model: model._register_builtin_comm_hook(hook))


@case
def hook_of_low_rank():
    """PowerSGD waits for a future in another future's callback."""
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    train(lambda model: model.register_comm_hook(state, powerSGD_hook.powerSGD_hook), steps=8)


@case
def join_of_uneven_inputs():
    rank = dist.get_rank()
    model = DistributedDataParallel(network(0), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(3 + rank):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
    agree(digits(model))


@case
def optimizer_of_shards():
    train(
        optimizer=lambda parameters: ZeroRedundancyOptimizer(
            parameters, optimizer_class=torch.optim.Adam, lr=0.01
        )
    )


@case
def fully_sharded():
    rank = dist.get_rank()
    model, alone = network(0), network(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(alone.parameters(), lr=0.1)
    batches = [torch.randn(4, 16) + each for each in range(dist.get_world_size())]
    dist.broadcast_object_list(batches)
    for _ in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        model(batches[rank]).square().mean().backward()
        alone(torch.cat(batches)).square().mean().backward()
        optimizer.step()
        other.step()
    for one, expected in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(one.full_tensor(), expected, rtol=1e-4, atol=1e-5)


@case
def tensor_parallel():
    model = network(0)
    numbers = torch.ones(2, 16)
    expected = model(numbers).detach().clone()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(model(numbers), expected)


@case
def mesh_of_two_dimensions():
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    for name, size in (("data", ranks // 2), ("tensor", 2)):
        one = torch.ones(1)
        dist.all_reduce(one, group=mesh[name].get_group())
        assert one.item() == size


@case
def groups():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    front = dist.new_group([0, 1])
    back = dist.new_group([ranks - 1, 0], backend="ringtree")
    everyone = dist.new_group()
    other = dist.new_group(backend="gloo")
    for group, members in ((front, 2), (back, 2), (everyone, ranks), (other, ranks)):
        if dist.get_rank(group) >= 0:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [members] * 3
    if rank in (0, ranks - 1):
        # torch identifies the root by its world rank.
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, ranks - 1, group=back)
        assert tensor.item() == ranks - 1
    for group in (front, back, everyone, other):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)


@case
def objects():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = [{"rate": 0.1}] if rank == 0 else [None]
    dist.broadcast_object_list(found)
    assert found == [{"rate": 0.1}]
    found = [None] * ranks
    dist.all_gather_object(found, "x" * rank)
    assert found == ["x" * each for each in range(ranks)]
    found = [None] * ranks if rank == 0 else None
    dist.gather_object(("metrics", rank), found)
    assert rank != 0 or found == [("metrics", each) for each in range(ranks)]
    found = [None]
    dist.scatter_object_list(found, list(range(ranks)) if rank == 0 else None)
    assert found == [rank]


@case
def functional_collectives():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert functional.all_reduce(torch.ones(3), "sum", world).tolist() == [ranks] * 3
    for _ in range(50):
        # The program drops the input immediately, so the call itself must keep the input alive.
        gathered = functional.all_gather_tensor(torch.full((999,), float(rank)), 0, world)
        expected = torch.arange(ranks).repeat_interleave(999).float()
        assert torch.equal(gathered + 0, expected)
    part = functional.reduce_scatter_tensor(torch.ones(2 * ranks), "sum", 0, world)
    assert (part + 0).tolist() == [ranks] * 2


@case
def strided_tensors():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(12.0).view(3, 4).t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, ranks * torch.arange(12.0).view(3, 4).t())
    tensor = torch.arange(12.0).view(3, 4).t()
    dist.all_reduce(tensor, async_op=True).wait()
    assert torch.equal(tensor, ranks * torch.arange(12.0).view(3, 4).t())
    outputs = [torch.zeros(2, 6)[:, ::2] for _ in range(ranks)]
    dist.all_gather(outputs, torch.full((2, 3), float(rank)))
    assert all(
        torch.equal(out, torch.full((2, 3), float(each))) for each, out in enumerate(outputs)
    )
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.broadcast(torch.tensor(5.0 if rank else 3.0), 1)


@case
def backward_on_a_thread_of_torch():
    """Distributed autograd runs DDP's reducer on a thread that runs no Python code."""
    name, rank, ranks = f"trainer{dist.get_rank()}", dist.get_rank(), dist.get_world_size()
    rpc.init_rpc(name, rank=rank, world_size=ranks)
    model = DistributedDataParallel(network(1))
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [model(torch.full((8, 16), 1.0 + rank)).sum()])
        found = dist_autograd.get_gradients(context)
        agree(b"".join(found[each].numpy().tobytes() for each in model.parameters()))
    rpc.shutdown()


@case
def coalesced():
    ranks = dist.get_world_size()
    tensors = [torch.ones(each + 1) for each in range(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor == ranks).all() for tensor in tensors)
    dist.all_reduce_coalesced(tensors)
    assert all((tensor == ranks**2).all() for tensor in tensors)


@case
def weighted_sum():
    ranks = dist.get_world_size()
    tensor = torch.ones(4)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [ranks / 2] * 4
    output = torch.empty(2)
    dist.reduce_scatter_tensor(output, torch.ones(2 * ranks), op=dist._make_nccl_premul_sum(0.5))
    assert output.tolist() == [ranks / 2] * 2


@case
def many_calls_in_flight():
    ranks = dist.get_world_size()
    tensors = [torch.full((each,), 1.0) for each in range(1, 60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    gathered = [torch.empty(ranks * 3) for _ in range(20)]
    works += [
        dist.all_gather_into_tensor(each, torch.full((3,), float(dist.get_rank())), async_op=True)
        for each in gathered
    ]
    # A blocking call runs after the asynchronous calls that were started before it.
    last = torch.ones(7)
    dist.all_reduce(last)
    assert last.tolist() == [ranks] * 7
    futures = [work.get_future() for work in works]
    torch.futures.wait_all(futures)
    assert all((tensor == ranks).all() for tensor in tensors)
    expected = torch.arange(float(ranks)).repeat_interleave(3)
    assert all(torch.equal(each, expected) for each in gathered)


@case
def works_that_nobody_keeps():
    for _ in range(300):
        dist.all_reduce(torch.ones(100), async_op=True)
        dist.all_gather(
            [torch.empty(100) for _ in range(dist.get_world_size())], torch.ones(100), async_op=True
        )
    dist.barrier()
    parameters = list(network(0).parameters())
    for _ in range(100):
        dist._verify_params_across_processes(dist.group.WORLD, parameters, None)


def start_first_on_rank_0(start):
    """Runs `start` on rank 0 and afterward on the other ranks, and returns its result."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(1)
    if rank != 0:
        dist.recv(token, 0)
        return start()
    started = start()
    for other in range(1, ranks):
        dist.send(token, other)
    return started


@case
def tensors_that_get_other_memory():
    """A call in flight keeps the memory that it uses, even if the tensor gets another storage."""
    ranks = dist.get_world_size()

    def start():
        tensors = [torch.ones(1000) for _ in range(3)]
        storages = [StorageWeakRef(each.untyped_storage()) for each in tensors]
        works = [
            dist.all_reduce(tensors[0], async_op=True),
            dist.all_gather(list(torch.empty(ranks, 1000)), tensors[1], async_op=True),
            dist.irecv(tensors[2], (dist.get_rank() + 1) % ranks, tag=7),
        ]
        for each in tensors:
            each.data = torch.zeros(3)
        gc.collect()
        if dist.get_rank() == 0:
            assert not any(each.expired() for each in storages)
        return works

    works = start_first_on_rank_0(start)
    dist.send(torch.ones(1000), (dist.get_rank() - 1) % ranks, tag=7)
    for work in works:
        work.wait()


@case
def works_that_are_polled():
    """A loop that polls works ends once they have completed, and the results are available."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def start():
        strided = torch.ones(2, 6)[:, ::2]
        every = [torch.empty(3) for _ in range(ranks)]
        received = torch.empty(3)
        works = [
            dist.all_reduce(strided, async_op=True),
            dist.all_gather(every, torch.full((3,), float(rank)), async_op=True),
            dist.irecv(received, (rank + 1) % ranks, tag=8),
        ]
        if rank == 0:
            assert not any(each.is_completed() for each in works)
        return works, strided, every, received

    works, strided, every, received = start_first_on_rank_0(start)
    works.append(dist.isend(torch.full((3,), float(rank)), (rank - 1) % ranks, tag=8))
    while not all(each.is_completed() for each in works):
        pass
    assert strided.tolist() == [[ranks] * 3] * 2
    assert [each.tolist() for each in every] == [[each] * 3 for each in range(ranks)]
    assert received.tolist() == [(rank + 1) % ranks] * 3
    other = dist.new_group(backend="gloo")
    work = dist.all_reduce(torch.ones(3), async_op=True, group=other)
    while not work.is_completed():
        pass
    dist.destroy_process_group(other)


@case
def calls_that_bypass_torch_keep_their_order():
    """Such calls run after earlier torch calls that run on a different thread."""
    if "," in dist.get_backend():
        return
    from ringtree.torch import all_reduce_, communicator

    comm, ranks = communicator(), dist.get_world_size()
    calls = [comm.barrier, lambda: comm.split(0), lambda: all_reduce_(torch.ones(3))]
    for each in range(150):
        every = [torch.empty(1000) for _ in range(ranks)]
        works = [dist.all_gather(every, torch.ones(1000), async_op=True) for _ in range(2)]
        calls[each % 3]()
        for work in works:
            work.wait()


@case
def barriers():
    for _ in range(20):
        dist.barrier()
    assert dist.get_backend() == os.environ.get("EXPECTED_BACKEND", "ringtree")


if __name__ == "__main__":
    dist.init_process_group(os.environ.get("BACKEND", "ringtree"))
    run_all(CASES, dist.get_rank())
    dist.destroy_process_group()
