"""A program for several ranks: asynchronous collectives, batches, values, counts and handles."""

import gc
import math
import pickle
import sys
import weakref

import numpy as np
import ringtree

from cases import refused, run_all

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def numbers(count=12, rank=None):
    rank = comm.rank if rank is None else rank
    return np.arange(count, dtype=np.float32) + 100 * rank


def everyone(count=12):
    return [numbers(count, rank) for rank in range(comm.world_size)]


def same(found, expected):
    np.testing.assert_array_equal(found, expected)


def neighbors():
    return (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size


def both(name, *arguments, **more):
    """Issues the blocking and then the asynchronous call, and yields after each has completed."""
    getattr(comm, name)(*arguments, **more)
    yield
    work = getattr(comm, "start_" + name)(*arguments, **more)
    work.wait(60)
    work.wait()
    assert work.is_finished() and work.done()
    yield


@case
def stats():
    own = comm.duplicate()
    for _ in range(3):
        own.all_reduce(numbers(100))
    right, left = neighbors()
    own.sendrecv(numbers(5), right, numbers(5), left)
    found = {row.call: row for row in own.stats()}
    assert set(found) == {"all-reduce", "send", "recv"}
    assert (found["all-reduce"].calls, found["all-reduce"].bytes) == (3, 1200)
    assert (found["send"].calls, found["send"].bytes) == (1, 20)
    assert {row.transport for row in found.values()} == {comm.info().transport}
    assert all(row.waited >= 0 for row in found.values())
    assert repr(found["recv"]).startswith('CallStats(call="recv", transport="')


@case
def reductions():
    ranks, rank = comm.world_size, comm.rank
    total = sum(everyone())
    start, end = comm.block(12)
    buffer, output = numbers(), np.zeros(12, np.float32)
    for _ in both("all_reduce_into", numbers(), output, "sum"):
        same(output, total)
        output[:] = 0
    for _ in both("all_reduce", buffer):
        same(buffer, total)
        buffer[:] = numbers()
    for _ in both("reduce", buffer, "max", 1):
        if rank == 1:
            same(buffer, numbers(rank=ranks - 1))
        buffer[:] = numbers()
    for _ in both("reduce_into", numbers(), output, "sum", 2):
        if rank == 2:
            same(output, total)
    for _ in both("reduce_scatter", buffer):
        same(buffer[start:end], total[start:end])
        buffer[:] = numbers()
    own = np.zeros(end - start, np.float32)
    for _ in both("reduce_scatter_into", numbers(), own):
        same(own, total[start:end])
    for _ in both("reduce_scatter_into", numbers(), own, factor=2.0):
        same(own, 2 * total[start:end])
    counts = [1, 0, 11][:ranks]
    at = sum(counts[:rank])
    for _ in both("reduce_scatter", buffer, counts=counts):
        same(buffer[at : at + counts[rank]], total[at : at + counts[rank]])
        buffer[:] = numbers()


@case
def moves():
    ranks, rank = comm.world_size, comm.rank
    start, end = comm.block(12)
    buffer = numbers()
    for _ in both("broadcast", buffer, 1):
        same(buffer, numbers(rank=1))
        buffer[:] = numbers()
    parts = [numbers(rank=each)[4 * each : 4 * each + 4] for each in range(ranks)]
    gathered = np.concatenate(parts)
    for _ in both("all_gather", buffer):
        same(buffer, gathered)
        buffer[:] = numbers()
    for _ in both("gather", buffer, 2):
        if rank == 2:
            same(buffer, gathered)
        buffer[:] = numbers()
    for _ in both("scatter", buffer, 2):
        same(buffer[start:end], numbers(rank=2)[start:end])
        buffer[:] = numbers()
    for _ in both("all_to_all", buffer):
        same(buffer, np.concatenate([each[start:end] for each in everyone()]))
        buffer[:] = numbers()
    output = np.zeros(12 * ranks, np.float32)
    for _ in both("all_gather_into", numbers(), output):
        same(output, np.concatenate(everyone()))
        output[:] = 0
    for _ in both("gather_into", numbers(), output if rank == 0 else None, 0):
        if rank == 0:
            same(output, np.concatenate(everyone()))
    output = np.zeros(4, np.float32)
    for _ in both("scatter_into", numbers() if rank == 1 else None, output, 1):
        same(output, numbers(rank=1)[start:end])
        output[:] = 0
    output = np.zeros(12, np.float32)
    for _ in both("all_to_all_into", numbers(), output):
        same(output, np.concatenate([each[start:end] for each in everyone()]))
    for _ in both("barrier"):
        pass


@case
def counts_per_rank():
    ranks, rank = comm.world_size, comm.rank
    counts = [2 * each for each in range(ranks)]
    at = sum(counts[:rank])
    parts = [numbers(count, each) for each, count in enumerate(counts)]
    whole = np.concatenate(parts)
    output = np.zeros(sum(counts), np.float32)
    for root in range(ranks):
        out = output if rank == root else None
        for _ in both("gather_into", parts[rank], out, root, counts=counts):
            if rank == root:
                same(output, whole)
                output[:] = 0
        own = np.zeros(counts[rank], np.float32)
        read = whole if rank == root else None
        for _ in both("scatter_into", read, own, root, counts=counts):
            same(own, parts[rank])
            own[:] = 0
    for name, *arguments in [("gather", 1), ("all_gather",)]:
        buffer = np.zeros(sum(counts), np.float32)
        buffer[at : at + counts[rank]] = parts[rank]
        for _ in both(name, buffer, *arguments, counts=counts):
            if rank == 1 or name == "all_gather":
                same(buffer, whole)
    buffer = whole.copy() if rank == 0 else np.zeros(sum(counts), np.float32)
    for _ in both("scatter", buffer, 0, counts=counts):
        same(buffer[at : at + counts[rank]], parts[rank])


@case
def many_calls_in_flight():
    """Mixes calls that the queue runs with calls that ringtree's threads run."""
    works, outputs = [], []
    for each in range(40):
        one = np.full(50, comm.rank + each)
        works.append(comm.start_all_reduce(one))
        # The input overlaps the output, so this call copies the input.
        two = np.arange(6.0) * comm.rank
        works.append(comm.start_all_reduce_into(two, two))
        outputs.append((one, two))
    last = np.array([comm.rank])
    comm.all_reduce(last)
    assert last[0] == sum(range(comm.world_size))
    for work in reversed(works):
        work.wait()
    for each, (one, two) in enumerate(outputs):
        assert (one == sum(range(comm.world_size)) + each * comm.world_size).all()
        same(two, np.arange(6.0) * sum(range(comm.world_size)))


@case
def wait_releases_references_to_buffers():
    class Numbers(np.ndarray):
        pass

    for name in ["start_all_reduce", "start_all_reduce_into"]:
        buffers = [np.ones(7).view(Numbers) for _ in range(1 + name.endswith("_into"))]
        gone = [weakref.ref(each) for each in buffers]
        work = getattr(comm, name)(*buffers)
        del buffers
        work.wait()
        comm.barrier()
        gc.collect()
        assert [each() for each in gone] == [None] * len(gone), name
    packed = bytearray(8)
    work = comm.start_broadcast(packed, 0)
    try:
        packed.append(1)
    except BufferError:
        pass
    else:
        raise AssertionError("the buffer was resized during the call")
    work.wait()
    packed.append(1)
    # The call of a dropped Work completes, and the buffer stays allocated until then.
    comm.start_all_reduce(np.ones(100_000))
    comm.barrier()


@case
def exchanges():
    to, source = neighbors()
    output = np.zeros(12, np.float32)
    comm.sendrecv(numbers(), to, output, source, tag=3)
    same(output, numbers(rank=source))
    buffer = numbers()
    comm.sendrecv(buffer, to, buffer, source)
    same(buffer, numbers(rank=source))
    comm.sendrecv(numbers(), comm.rank, output, comm.rank)
    same(output, numbers())
    refused(TypeError, "got f32", lambda: comm.sendrecv(numbers(), to, np.zeros(3), source))
    refused(ValueError, "out of range", lambda: comm.sendrecv(numbers(), 9, output, source))
    refused(BufferError, "read-only", lambda: comm.sendrecv(b"12", to, b"34", source))
    comm.barrier()


@case
def messages_from_any_rank():
    if comm.rank == 0:
        found = {}
        for _ in range(comm.world_size - 1):
            one = np.zeros(3)
            source = comm.recv_any(one, tag=5)
            found[source] = list(one)
        assert found == {rank: [rank] * 3 for rank in range(1, comm.world_size)}
    else:
        comm.send(np.full(3, float(comm.rank)), 0, tag=5)
    comm.barrier()
    if comm.rank == 0:
        arrays = [np.zeros(3) for _ in range(comm.world_size - 1)]
        works = [comm.start_recv_any(each, tag=6) for each in arrays]
        comm.barrier()
        for work in works:
            work.wait()
        found = {work.source: list(each) for work, each in zip(works, arrays)}
        assert found == {rank: [rank] * 3 for rank in range(1, comm.world_size)}
    else:
        comm.barrier()
        work = comm.start_send(np.full(3, float(comm.rank)), 0, tag=6)
        work.wait()
        assert work.source is None
    refused(ringtree.UsageError, "empty", lambda: comm.recv_any(bytearray()))
    refused(ringtree.UsageError, "empty", lambda: comm.start_recv_any(bytearray()))
    refused(BufferError, "read-only", lambda: comm.recv_any(b"1"))
    comm.barrier()


@case
def batches():
    ranks, rank = comm.world_size, comm.rank
    incoming = {peer: np.zeros(100_000) for peer in range(ranks) if peer != rank}
    with comm.batch() as batch:
        for peer, buffer in incoming.items():
            batch.send(np.full(100_000, float(rank)), peer, tag=1)
            batch.recv(buffer, peer, tag=1)
    for peer, buffer in incoming.items():
        assert (buffer == peer).all()
    to, source = neighbors()
    one = bytearray(1)
    try:
        with comm.batch() as batch:
            batch.send(bytes([rank]), to)
            batch.recv(one, source)
            raise KeyError("from the body")
    except KeyError:
        pass
    else:
        raise AssertionError("the exception of the body was lost")
    comm.barrier()
    assert one[0] == 0, "no message starts"
    refused(ValueError, "inside", lambda: batch.send(b"1", to))
    with batch:
        refused(ValueError, "already in use", batch.__enter__)
        batch.send(bytes([rank]), to)
        batch.recv(one, source)
        assert one[0] == 0
    assert one[0] == source
    with comm.batch() as batch:
        refused(ValueError, "out of range", lambda: batch.send(b"1", 99))
    comm.barrier()


@case
def values():
    ranks, rank = comm.world_size, comm.rank
    settings = {"rate": 1e-3, "names": ["a", None], "rows": 2**80}
    for root in range(ranks):
        assert comm.broadcast_value(settings if rank == root else None, root) == settings
        found = comm.gather_value((rank, "x" * 1000 * rank), root)
        expected = [(each, "x" * 1000 * each) for each in range(ranks)]
        assert found == (expected if rank == root else None)
    assert comm.all_gather_value({rank}) == [{each} for each in range(ranks)]
    to, source = neighbors()
    large = np.arange(300_000)
    if rank == 0:
        comm.send_value(large, to, tag=2)
    received = comm.recv_value(source, tag=2)
    same(received, large)
    if rank != 0:
        comm.send_value(received, to, tag=2)
    work = comm.start_all_reduce_into(large, np.empty_like(large))
    assert comm.all_gather_value(rank) == list(range(ranks))
    work.wait()


@case
def values_that_cannot_be_pickled():
    for act in [
        lambda value: comm.broadcast_value(value, 1),
        lambda value: comm.all_gather_value(value),
        lambda value: comm.gather_value(value, 0),
    ]:
        try:
            act((lambda: 1) if comm.rank == 1 else 1)
        except (pickle.PicklingError, AttributeError):
            assert comm.rank == 1
        except ringtree.UsageError as error:
            assert comm.rank != 1 and "rank 1" in str(error), error
        else:
            raise AssertionError("the call raised no error")
    refused(ringtree.UsageError, "9 is out of range", lambda: comm.gather_value(1, 9))
    refused(ringtree.UsageError, "9 is out of range", lambda: comm.broadcast_value(1, 9))
    assert comm.all_gather_value(comm.rank) == list(range(comm.world_size))


@case
def invalid_asynchronous_calls():
    """An invalid call sends nothing."""
    one, other = np.zeros(6, np.float32), np.zeros(6, np.int32)
    start = comm.start_all_reduce_into
    refused(TypeError, "got f32 and i32", lambda: start(one, other))
    refused(BufferError, "read-only", lambda: comm.start_all_reduce(b"bytes"))
    refused(BufferError, "not contiguous", lambda: comm.start_all_reduce(one[::2]))
    refused(ValueError, "unknown operator", lambda: comm.start_all_reduce(one, "mean"))
    refused(ValueError, "must have", lambda: start(one, one[:3].copy()))
    refused(ValueError, "99 is out of range", lambda: comm.start_broadcast(one, 99))
    refused(ValueError, "counts", lambda: comm.start_all_gather(one, counts=[6]))
    refused(ValueError, "must have", lambda: comm.start_all_gather(one, counts=[6, 6, 6]))
    wrong = [1] * comm.world_size
    refused(ValueError, "must have", lambda: comm.gather_into(one, None, 0, counts=wrong))
    refused(ValueError, "counts", lambda: comm.scatter_into(one, one.copy(), 0, counts=[1, 2]))
    refused(ValueError, "[-1]", lambda: comm.gather(one, 0, counts=[-1]))
    unaligned = memoryview(bytearray(9))[1:]
    refused(ValueError, "not aligned", lambda: comm.start_all_reduce(unaligned, dtype="f64"))
    comm.barrier()


@case
def handles():
    assert comm.local_rank == comm.rank
    short, patient = comm.with_timeout(7), comm.without_timeout()
    assert (short.timeout, patient.timeout) == (7, math.inf) and comm.timeout != 7
    short.timeout = patient.timeout
    assert short.timeout == math.inf
    refused(ValueError, "not a valid timeout", lambda: comm.with_timeout(-1))
    refused(ValueError, "not a valid timeout", lambda: comm.with_timeout(math.nan))
    one = np.array([1.0])
    for handle in [short, comm, patient]:
        handle.all_reduce(one)
        handle.start_all_reduce_into(one, one).wait()
    assert one[0] == comm.world_size**6
    with comm.duplicate().with_name("losses") as losses:
        info = losses.info()
        assert (info.rank, info.world_size, info.name) == (comm.rank, comm.world_size, "losses")
        assert info.transport == losses.transport and info.hosts >= 1
        assert not info.is_reproducible and info.algorithm is None and info.tuning_origin
        assert "losses" in str(info) and str(info) in repr(info)
        losses.barrier()
        other = losses.with_timeout(5)
    refused(ringtree.UsageError, "closed", other.barrier)
    del short, patient
    gc.collect()
    comm.barrier()


if __name__ == "__main__":
    comm = ringtree.init()
    run_all(CASES, comm.rank)
    sys.stdout.flush()
