"""Tests the ray.util.collective backend with three actors. Skipped if Ray is not installed."""

import numpy
import pytest

ray = pytest.importorskip("ray")

RANKS = 3


@pytest.fixture(scope="module")
def actors():
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
    yield [Actor.remote(rank) for rank in range(RANKS)]
    ray.shutdown()


@ray.remote
class Actor:
    def __init__(self, rank):
        import ray.util.collective as collective
        from ringtree.ray import register

        register()
        register()
        self.rank, self.collective = rank, collective

    def join(self, name):
        self.collective.init_collective_group(RANKS, self.rank, "RINGTREE", name)
        return self.collective.get_rank(name)

    def wait_alone(self, name):
        """Returns the keys left in Ray's store by a group of two whose other rank never joins."""
        import os

        import ray.experimental.internal_kv as kv
        import ringtree
        from ringtree.ray import RingtreeGroup

        os.environ["RINGTREE_TIMEOUT_MS"] = "500"
        try:
            RingtreeGroup(2, 0, name)
        except ringtree.JoinError:
            return kv._internal_kv_list(f"ringtree/{name}/")
        finally:
            del os.environ["RINGTREE_TIMEOUT_MS"]

    def leave(self, name):
        self.collective.destroy_collective_group(name)

    def numbers(self, name):
        """Returns the results of all collectives on arrays."""
        own = numpy.arange(4, dtype=numpy.float32) + self.rank
        total, first, least = own.copy(), own.copy(), own.copy()
        self.collective.allreduce(total, name)
        self.collective.broadcast(first, 1, name)
        self.collective.reduce(least, 2, name, self.collective.types.ReduceOp.MIN)
        gathered = [numpy.empty_like(own) for _ in range(RANKS)]
        self.collective.allgather(gathered, own, name)
        share = numpy.empty(2, numpy.float32)
        parts = [numpy.full(2, 10 * to + self.rank, numpy.float32) for to in range(RANKS)]
        self.collective.reducescatter(share, parts, name)
        self.collective.barrier(name)
        return total, first, least, gathered, share

    def message(self, name):
        import torch

        tensor = torch.full((5,), float(self.rank), dtype=torch.bfloat16)
        if self.rank == 0:
            self.collective.send(tensor, 2, name)
        elif self.rank == 2:
            self.collective.recv(tensor, 0, name)
        return tensor.float().tolist()


def on_all(actors, method, *arguments):
    return ray.get([getattr(each, method).remote(*arguments) for each in actors], timeout=120)


def test_collectives_and_messages(actors):
    assert on_all(actors, "join", "first") == [0, 1, 2]
    own = [numpy.arange(4) + rank for rank in range(RANKS)]
    for rank, found in enumerate(on_all(actors, "numbers", "first")):
        total, first, least, gathered, share = found
        assert (total == sum(own)).all()
        assert (first == own[1]).all()
        assert (least == (own[0] if rank == 2 else own[rank])).all()
        assert (numpy.array(gathered) == numpy.array(own)).all()
        assert (share == 30 * rank + 3).all()
    zero, one, two = on_all(actors, "message", "first")
    assert (zero, one, two) == ([0.0] * 5, [1.0] * 5, [0.0] * 5)
    on_all(actors, "leave", "first")


def test_group_with_same_name_can_be_created_again(actors):
    for _ in range(3):
        assert on_all(actors, "join", "again") == [0, 1, 2]
        on_all(actors, "leave", "again")


def test_group_that_never_forms_leaves_no_keys(actors):
    assert ray.get(actors[0].wait_alone.remote("alone"), timeout=120) == []
