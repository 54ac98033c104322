"""A program for several ranks: the communicator of vLLM's plug-in.

Without vLLM, the communicator inherits from a small class that replaces vLLM's.
"""

import sys
import types

import torch
import torch.distributed as dist

import ringtree

from cases import run_all

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class BaseCommunicator:
    """The attributes of vLLM's class that the plug-in uses."""

    def __init__(self, cpu_group, device, device_group, unique_name):
        self.rank_in_group, self.world_size = cpu_group.rank(), cpu_group.size()

    def destroy(self):
        pass


def replace_vllm():
    """Replaces the modules of vLLM that the plug-in imports."""
    import logging

    parts = {
        "": {"envs": types.SimpleNamespace(VLLM_PLUGINS=None)},
        ".distributed": {},
        ".distributed.device_communicators": {},
        ".distributed.device_communicators.cpu_communicator": {"CpuCommunicator": BaseCommunicator},
        ".distributed.utils": {"get_distributed_timeout_or_none": lambda: None},
        ".logger": {"init_logger": logging.getLogger},
    }
    for name, contents in parts.items():
        module = sys.modules["vllm" + name] = types.ModuleType("vllm" + name)
        vars(module).update(contents)


def communicator(name):
    from ringtree.vllm._communicator import RingtreeCommunicator

    group = dist.new_group(backend="gloo")
    return RingtreeCommunicator(group, torch.device("cpu"), group, name)


@case
def sums_equal_those_of_gloo():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((1,), (3, 5), (8, 4096)):
            own = (torch.arange(4096 * 8)[: torch.Size(shape).numel()] % 7 + RANK).to(dtype)
            own = own.reshape(shape)
            expected = own.clone()
            dist.all_reduce(expected)
            assert COMM.all_reduce(own) is own
            assert torch.equal(own, expected), (dtype, shape)


@case
def tensors_need_not_be_contiguous():
    whole = torch.full((4, 6), float(RANK))
    assert COMM.all_reduce(whole.t()[1:3]).tolist() == [[float(sum(range(RANKS)))] * 4] * 2
    assert whole[:, 1:3].unique().item() == sum(range(RANKS))
    assert whole[:, 0].unique().item() == RANK
    numbers = torch.arange(12).reshape(3, 4) + 20 * RANK
    for own in numbers.t(), numbers[:, ::2], numbers[:, 0:1], numbers[:, -1], numbers[0, ::2]:
        length = len(own)
        assert torch.equal(COMM.all_gather(own, 0)[length * RANK : length * (RANK + 1)], own)


@case
def gathered_tensors_are_joined_along_the_dimension():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        every = [(torch.arange(6).reshape(1, 2, 3) + rank).to(dtype) for rank in range(RANKS)]
        for dim in (-1, 0, 1, 2):
            expected = torch.cat(every, dim)
            assert torch.equal(COMM.all_gather(every[RANK], dim), expected), (dtype, dim)
            found = COMM.gather(every[RANK], 1, dim)
            assert found is None if RANK != 1 else torch.equal(found, expected), (dtype, dim)


@case
def reduce_scatter_splits_the_dimension():
    for dim in (0, 1, -1):
        whole = torch.arange(RANKS * 2 * RANKS * 3.0).reshape(RANKS * 2, RANKS * 3)
        expected = (whole * sum(range(1, RANKS + 1))).chunk(RANKS, dim)[RANK]
        assert torch.equal(COMM.reduce_scatter(whole * (RANK + 1), dim), expected), dim


@case
def invalid_calls_are_usage_errors():
    for act in (
        lambda: COMM.reduce_scatter(torch.ones(2 * RANKS + 1), 0),
        lambda: COMM.all_reduce(torch.ones(2, dtype=torch.float8_e4m3fn)),
        lambda: COMM.all_reduce(torch.ones(2, dtype=torch.bool)),
    ):
        try:
            act()
        except ringtree.UsageError:
            continue
        raise AssertionError("no error was raised")


@case
def messages_go_to_the_next_rank():
    shape = torch.Size([2, 3])
    if RANK == 0:
        COMM.send(torch.full(shape, 1.5, dtype=torch.bfloat16))
    received = COMM.recv(shape, torch.bfloat16)
    assert received.tolist() == [[1.5] * 3] * 2
    if RANK != 0:
        COMM.send(received)


@case
def dictionaries_arrive_as_sent():
    sent = {
        "hidden": torch.arange(6.0).reshape(2, 3).t(),
        "number": 7,
        "residual": torch.ones(4, dtype=torch.bfloat16),
        "nothing": torch.empty(0, 5),
        "flags": torch.tensor([True, False]),
    }
    if RANK == 0:
        COMM.send_tensor_dict(sent, RANKS - 1)
    if RANK == RANKS - 1:
        found = COMM.recv_tensor_dict(0)
        assert list(found) == list(sent) and found.pop("number") == sent.pop("number")
        for key, tensor in sent.items():
            assert found[key].dtype is tensor.dtype and torch.equal(found[key], tensor), key


@case
def compiled_models_call_the_collectives():
    def model(x):
        x = COMM.all_reduce(x * 2)
        return COMM.reduce_scatter(COMM.all_gather(x, 0) + 1, 0)

    ones = torch.ones(RANKS, 4)
    with torch.inference_mode():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(ones), torch.full((RANKS, 4), (2.0 * RANKS + 1) * RANKS))
        assert torch.equal(compiled(ones), model(ones))


@case
def two_groups_are_separate():
    other = communicator("dp:0")
    assert other.all_reduce(torch.ones(1)).item() == RANKS
    other.destroy()
    try:
        other.all_reduce(torch.ones(1))
    except ringtree.UsageError:
        assert COMM.all_reduce(torch.ones(1)).item() == RANKS
    else:
        raise AssertionError("the communicator is not closed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        import vllm  # noqa: F401
    except ImportError:
        replace_vllm()
    dist.init_process_group("gloo")
    RANK, RANKS = dist.get_rank(), dist.get_world_size()
    COMM = communicator("tp:0")
    run_all(CASES, RANK)
    COMM.destroy()
    dist.destroy_process_group()
