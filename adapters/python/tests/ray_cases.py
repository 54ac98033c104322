"""A program for two ranks: tensors of the backend for Ray, with fakes of Ray's modules."""

import enum
import sys
import types

import numpy as np
import torch

import ringtree
import cases
from cases import run_all

CASES = {}
Operator = enum.Enum("Operator", "SUM PRODUCT MIN MAX AVERAGE")


class Group:
    def __init__(self, world_size, rank, group_name):
        self.world_size, self.rank = world_size, rank


def install_fakes():
    collective = "ray.util.collective"
    names = ["ray", "ray.util", collective, f"{collective}.collective_group"]
    contents = {
        "ray.experimental.internal_kv": {},
        f"{collective}.backend_registry": {"register_collective_backend": None},
        f"{collective}.collective_group.base_collective_group": {"BaseGroup": Group},
        f"{collective}.types": {"ReduceOp": Operator},
    }
    for name in ["ray", "ray.experimental", *names[1:], *contents]:
        module = types.ModuleType(name)
        vars(module).update(contents.get(name, {}))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def case(function):
    CASES[function.__name__] = function
    return function


def refused(words, act):
    cases.refused(ringtree.UsageError, words, act)
    group.barrier()


OPTIONS = types.SimpleNamespace(reduceOp=Operator.SUM, root_rank=0)


@case
def parts_that_do_not_fit():
    own = np.arange(6, dtype=np.float32).reshape(2, 3)
    read_only = np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    wrong = {
        "one per rank; got 1": [np.zeros(12, np.float32)],
        "one per rank; got 3": [np.zeros((2, 3), np.float32)] * 3,
        "not contiguous": [np.zeros((3, 2), np.float32).T] * 2,
        "int64[2, 3]": [np.zeros((2, 3), np.int64)] * 2,
        "float32[3, 2]": [np.zeros((3, 2), np.float32)] * 2,
        "float32[1]": [np.zeros(1, np.float32)] * 2,
        "bf16[2, 3]": [torch.zeros(2, 3, dtype=torch.bfloat16)] * 2,
        "read-only": [read_only] * 2,
    }
    for words, parts in wrong.items():
        refused(words, lambda: group.allgather([parts], [own]))
        if words != "read-only":
            refused(words, lambda: group.reducescatter([own.copy()], [parts], OPTIONS))
    refused("not contiguous", lambda: group.allgather([[torch.zeros(3, 2).t()] * 2], [own]))
    refused("float32[1]", lambda: group.allgather([[np.zeros(5, np.float32)] * 2], [own[0, :1]]))


@case
def tensors_that_are_not_contiguous():
    """Such tensors are errors even on ranks whose tensor the call only reads."""
    for transposed in (np.zeros((3, 2)).T, torch.zeros(3, 2).t()):
        for act in (group.allreduce, group.reduce, group.broadcast):
            refused("not contiguous", lambda: act([transposed], OPTIONS))


@case
def operators_that_are_not_supported():
    options = types.SimpleNamespace(reduceOp=Operator.AVERAGE, root_rank=0)
    for act in (group.allreduce, group.reduce):
        refused("use one of: SUM PRODUCT MIN MAX", lambda: act([np.zeros(3)], options))


@case
def parts_that_fit():
    for kind in (torch.bfloat16, torch.float32):
        parts = [torch.zeros(2, 3, dtype=kind) for _ in range(2)]
        group.allgather([parts], [torch.full((2, 3), comm.rank + 1.0, dtype=kind)])
        assert [part.float().mean().item() for part in parts] == [1, 2]
        share = torch.zeros(2, 3, dtype=kind)
        group.reducescatter([share], [parts], OPTIONS)
        assert share.float().mean() == 2 * (comm.rank + 1)


if __name__ == "__main__":
    install_fakes()
    import ringtree.ray

    comm = ringtree.init()
    group = ringtree.ray.RingtreeGroup.__new__(ringtree.ray.RingtreeGroup)
    Group.__init__(group, 2, comm.rank, "tensors")
    group._comm = comm
    run_all(CASES, comm.rank)
