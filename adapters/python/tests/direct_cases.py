"""A program for several ranks: all_reduce_, which bypasses torch's dispatch, and torch.compile."""

import functools
import gc
import signal
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

import ringtree
from ringtree.torch import all_reduce_, communicator

import cases
from cases import run_all

torch.set_num_threads(1)
CASES = {}
refused = functools.partial(cases.refused, ringtree.UsageError)


def case(function):
    CASES[function.__name__] = function
    return function


@case
def sums_equal_those_of_torch():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        for count in (1, 33, 70_000):
            own = (torch.arange(count) % 5 + dist.get_rank()).to(dtype)
            expected = own.clone()
            assert all_reduce_(own) is own
            dist.all_reduce(expected)
            assert torch.equal(own, expected), (dtype, count)


@case
def operators_bools_and_complex_numbers():
    rank, size = dist.get_rank(), dist.get_world_size()
    assert all_reduce_(torch.tensor([rank]), "max").item() == size - 1
    assert all_reduce_(torch.tensor([float(rank)]), "avg").item() == (size - 1) / 2
    assert all_reduce_(torch.tensor([rank == 0])).item() is True
    assert all_reduce_(torch.tensor([rank == 0]), "min").item() is False
    both = torch.tensor([1 + 2j, 3j]) * (rank + 1)
    assert torch.equal(all_reduce_(both), torch.tensor([1 + 2j, 3j]) * size * (size + 1) / 2)


@case
def each_group_has_its_own_communicator():
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([one, one + 1]) for one in range(0, size, 2)]
    pair = pairs[rank // 2]
    first = rank // 2 * 2
    assert all_reduce_(torch.tensor([rank]), group=pair).item() == 2 * first + 1
    assert communicator(pair).world_size == 2
    assert communicator().world_size == size
    other = dist.new_group(backend="gloo")
    refused("uses the gloo backend", lambda: all_reduce_(torch.ones(1), group=other))


class Own(torch.Tensor):
    """A tensor class that the program defines."""


@case
def every_tensor_gets_the_result_of_torchs_all_reduce():
    """Also tests views, sparse tensors and tensors of a subclass."""
    rank = dist.get_rank()

    def numbers(*shape, dtype=torch.float32):
        count = torch.Size(shape).numel()
        return (torch.arange(count) + rank).reshape(shape).to(dtype)

    makers = {
        "one number": lambda: torch.tensor(1.0 + rank),
        "nothing": lambda: torch.empty(0, 3),
        "columns": lambda: numbers(4, 6)[:, 1:3],
        "transposed": lambda: numbers(4, 4).T,
        "rows of a transposed tensor": lambda: numbers(4, 4).T[1:],
        "one column": lambda: numbers(5, 1)[:, :1],
        "subclass": lambda: numbers(8).as_subclass(Own),
        "sparse": lambda: torch.diag(numbers(3)).to_sparse(),
    }
    for name, make in makers.items():
        own, expected = make(), make()
        # The elements of the base tensor that are not part of the view must not change.
        bases = own._base, expected._base
        all_reduce_(own)
        dist.all_reduce(expected)
        assert torch.equal(own.to_dense(), expected.to_dense()), name
        assert bases[0] is None or torch.equal(*bases), name


@case
def lazy_tensors_are_errors_and_do_not_change():
    for make in (
        lambda: torch._neg_view(torch.ones(8)),
        lambda: torch.tensor([1j]).conj().imag,
        lambda: torch.tensor([1j, 2]).conj(),
        lambda: torch._efficientzerotensor(3),
    ):
        tensor = make()
        try:
            all_reduce_(tensor)
        except (ringtree.UsageError, RuntimeError):
            assert torch.equal(tensor, make())
            continue
        raise AssertionError(f"{tensor} was accepted")


@case
def calls_keep_their_order_among_torchs_calls():
    size = dist.get_world_size()
    first, second = torch.ones(200_000), torch.ones(1)
    work = dist.all_reduce(first, async_op=True)
    all_reduce_(second)
    work.wait()
    assert first[-1].item() == size and second.item() == size


@case
def tensor_can_get_another_storage_during_a_call():
    """A signal handler on rank 0 replaces the storage. The other ranks wait until it has run."""
    count, store = 1 << 24, dist.distributed_c10d._get_default_store()
    tensor = torch.ones(count)
    if dist.get_rank() == 0:

        def handler(*_):
            tensor.data = torch.zeros(count)
            store.set("another storage", "")

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        all_reduce_(tensor)
        signal.signal(signal.SIGALRM, before)
    else:
        store.wait(["another storage"])
        all_reduce_(tensor)


@case
def ranks_outside_a_group_get_torchs_warning():
    group, number = dist.new_group([0]), torch.ones(1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert all_reduce_(number, group=group) is number and number.item() == 1
    if dist.get_rank() != 0:
        assert any("not" in str(one.message) and "group" in str(one.message) for one in warned)
        refused("not a member of the group", lambda: communicator(group))


@case
def tensors_without_memory_in_this_process_are_errors():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    spread = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
    for tensor in (spread, torch.ones(3).numpy(), None):
        try:
            all_reduce_(tensor)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError):
            continue
        raise AssertionError(f"{tensor} was accepted")
    with FakeTensorMode():
        assert all_reduce_(torch.ones(3)).shape == (3,)


@case
def call_waits_for_a_pending_result():
    size = dist.get_world_size()
    sums = functional.all_reduce(torch.ones(1000), "sum", dist.group.WORLD)
    assert isinstance(sums, functional.AsyncCollectiveTensor)
    assert (all_reduce_(sums) == size * size).all()


@case
def autograd_ignores_the_call_and_torch_warns():
    size = dist.get_world_size()
    for reduce in (dist.all_reduce, all_reduce_):
        leaf = torch.ones(3, requires_grad=True)
        reduce(leaf)
        made = leaf * 2
        version = made._version
        reduce(made)
        assert torch.equal(made, torch.full((3,), 2.0 * size * size)) and made.requires_grad
        assert made._version == version
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            made.sum().backward()
        assert torch.equal(leaf.grad, torch.full((3,), 2.0))
        assert any("autograd kernel was not registered" in str(one.message) for one in warned)
        with torch.no_grad():
            reduce(leaf)
        assert torch.equal(leaf.detach(), torch.full((3,), float(size * size)))
    with torch.inference_mode():
        assert all_reduce_(torch.ones(1)).item() == size


@case
def torch_compile_traces_the_call():
    own = torch.full((64,), float(dist.get_rank()))
    for op in ("sum", "MAX", dist.ReduceOp.MAX):

        def layer(tensor, op=op):
            return all_reduce_(tensor * 2, op) + 1

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(own.clone()), layer(own.clone()))


@case
def operators_of_torch_and_capitals():
    size, rank = dist.get_world_size(), dist.get_rank()
    for op in ("max", "MAX", dist.ReduceOp.MAX, dist.ReduceOp(dist.ReduceOp.MAX)):
        for tensor in (torch.tensor([float(rank)]), torch.tensor([rank, 0]).t()[:1]):
            assert all_reduce_(tensor, op)[0] == size - 1
        assert all_reduce_(torch.tensor([rank == 1]), op).item()
    names = "sum prod min max avg band bor bxor"
    refused(names, lambda: all_reduce_(torch.ones(1), "mean"))
    for op in (dist.ReduceOp.PREMUL_SUM, "mean", 3):
        refused("use one of", lambda: all_reduce_(torch.ones(1), op))
        refused("use one of", lambda: all_reduce_(torch.tensor([True]), op))


@case
def tensors_as_buffers():
    comm = communicator()
    for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(3))):
        words = f"'{type(tensor).__name__}' is not a buffer; pass tensor.numpy(), or use "
        refused(words + "ringtree.torch.all_reduce_", lambda: comm.all_reduce(tensor))
    halves = torch.ones(3, dtype=torch.bfloat16)
    comm.all_reduce(halves.view(torch.uint16).numpy(), dtype="bf16")
    assert halves.tolist() == [dist.get_world_size()] * 3


@case
def new_default_group_has_a_new_communicator():
    """Must be the last case, because it destroys the group that the other cases use."""
    size = dist.get_world_size()
    for _ in range(3):
        old, number = communicator(), torch.ones(1)
        assert all_reduce_(number).item() == size
        dist.destroy_process_group()
        gc.collect()
        refused("no default process group", lambda: all_reduce_(torch.ones(1)))
        refused("closed", lambda: old.barrier())
        dist.init_process_group("ringtree")
        assert communicator() is not old
        assert all_reduce_(torch.ones(1)).item() == size


if __name__ == "__main__":
    dist.init_process_group("ringtree")
    run_all(CASES, dist.get_rank())
    sys.stdout.flush()
    dist.destroy_process_group()
