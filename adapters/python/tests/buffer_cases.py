"""A program for several ranks without torch: every operation on NumPy arrays."""

import array
import ctypes

import numpy as np
import ringtree

from cases import refused, run_all

CASES = {}
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
OPERATORS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
OPERATORS_OF_BITS = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def case(name):
    def note(function):
        CASES[name] = function
        return function

    return note


def own(kind, count, rank):
    return np.random.default_rng(rank).integers(0, 3, count).astype(kind)


def all_of(kind, count):
    return [own(kind, count, rank) for rank in range(comm.world_size)]


def of_type(kind):
    operators = dict(OPERATORS) | ({} if kind[0] == "f" else OPERATORS_OF_BITS)

    @case(f"reductions {kind}")
    def _():
        for op, function in operators.items():
            whole = all_of(kind, 1001)
            expected = function.reduce(whole)
            buffer = own(kind, 1001, comm.rank)
            comm.all_reduce(buffer, op)
            np.testing.assert_array_equal(buffer, expected)
            output = np.empty(1001, kind)
            comm.all_reduce_into(whole[comm.rank], output, op)
            np.testing.assert_array_equal(output, expected)
            for root in range(comm.world_size):
                buffer = own(kind, 1001, comm.rank)
                comm.reduce(buffer, op, root)
                if comm.rank == root:
                    np.testing.assert_array_equal(buffer, expected)
            start, end = comm.block(1001)
            buffer = own(kind, 1001, comm.rank)
            comm.reduce_scatter(buffer, op)
            np.testing.assert_array_equal(buffer[start:end], expected[start:end])
            counts = [3 * each + 2 for each in range(comm.world_size)]
            start = sum(counts[: comm.rank])
            output = np.empty(counts[comm.rank], kind)
            part = np.ascontiguousarray(whole[comm.rank][: sum(counts)])
            comm.reduce_scatter_into(part, output, op, counts=counts)
            np.testing.assert_array_equal(output, expected[start : start + counts[comm.rank]])

    @case(f"moves {kind}")
    def _():
        ranks, rank = comm.world_size, comm.rank
        whole = all_of(kind, 120)
        for root in range(ranks):
            buffer = own(kind, 120, rank)
            comm.broadcast(buffer, root)
            np.testing.assert_array_equal(buffer, whole[root])
            output = np.empty((ranks, 120), kind) if rank == root else None
            comm.gather_into(whole[rank], output, root)
            if rank == root:
                np.testing.assert_array_equal(output, whole)
            output = np.empty(120, kind)
            comm.scatter_into(np.stack(whole) if rank == root else None, output, root)
            np.testing.assert_array_equal(output, whole[rank])
        output = np.empty((ranks, 120), kind)
        comm.all_gather_into(whole[rank], output)
        np.testing.assert_array_equal(output, whole)
        buffer = np.zeros(120, kind)
        start, end = comm.block(120)
        buffer[start:end] = whole[0][start:end]
        comm.all_gather(buffer)
        np.testing.assert_array_equal(buffer, whole[0])
        counts = list(range(ranks))
        output = np.empty(sum(counts), kind)
        comm.all_gather_into(whole[rank][:rank].copy(), output, counts=counts)
        expected = np.concatenate([part[:each] for each, part in enumerate(whole)])
        np.testing.assert_array_equal(output, expected)
        rows = np.stack(whole)[:, : ranks * 2]
        output = np.empty(ranks * 2, kind)
        comm.all_to_all_into(np.ascontiguousarray(rows[rank]), output)
        np.testing.assert_array_equal(output, rows[:, 2 * rank : 2 * rank + 2].ravel())
        send = [rank + each for each in range(ranks)]
        receive = [each + rank for each in range(ranks)]
        output = np.empty(sum(receive), kind)
        comm.all_to_all_into(whole[rank][: sum(send)].copy(), output, send=send, receive=receive)
        at = [sum(each + to for to in range(rank)) for each in range(ranks)]
        parts = [whole[i][at[i] : at[i] + receive[i]] for i in range(ranks)]
        np.testing.assert_array_equal(output, np.concatenate(parts))

    @case(f"messages {kind}")
    def _():
        ranks, rank = comm.world_size, comm.rank
        to, source = (rank + 1) % ranks, (rank - 1) % ranks
        buffer = np.empty(5000, kind)
        incoming = comm.start_recv(buffer, source)
        comm.send(own(kind, 5000, rank), to)
        incoming.wait()
        assert incoming.done()
        np.testing.assert_array_equal(buffer, own(kind, 5000, source))


for one in TYPES:
    of_type(one)


@case("other buffers")
def _():
    numbers = array.array("d", [1.5, 2.5])
    comm.all_reduce(numbers, "avg")
    assert list(numbers) == [1.5, 2.5]
    packed = bytearray([comm.rank, 7])
    comm.all_reduce(memoryview(packed), "max")
    assert list(packed) == [comm.world_size - 1, 7]
    sent = comm.start_send(packed, (comm.rank + 1) % comm.world_size)
    comm.recv(bytearray(2), (comm.rank - 1) % comm.world_size)
    sent.wait()
    # A buffer can be resized once no call holds it.
    packed.append(1)
    number = np.array(1.5)
    comm.all_reduce(number)
    comm.start_all_reduce(number).wait()
    assert number == 1.5 * comm.world_size**2
    number = ctypes.c_float(1.5)
    comm.all_reduce(number)
    assert number.value == 1.5 * comm.world_size
    refused(BufferError, "read-only", lambda: comm.all_reduce(np.float32(1)))
    halves = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2 as bf16
    comm.all_reduce(halves, dtype="bf16")
    assert halves[0] == {2: 0x4000, 4: 0x4080}[comm.world_size]
    weighted = np.ones(3, np.float32)
    comm.all_reduce(weighted, factor=comm.rank + 1.0)
    assert weighted[0] == sum(range(1, comm.world_size + 1))


@case("bools remain 0 or 1")
def _():
    """Like in torch, a sum of bools is "any" and a product is "all"."""
    rank, ranks = comm.rank, comm.world_size
    own = np.array([True, rank == 0, False] * 5)
    any_of, all_of = np.array([True, True, False] * 5), np.array([True, False, False] * 5)
    odd = np.array([ranks % 2, 1, 0] * 5, bool)
    for op, expected in {
        **dict.fromkeys(["sum", "max", "bor"], any_of),
        **dict.fromkeys(["prod", "min", "band"], all_of),
        "bxor": odd,
    }.items():
        buffer = own.copy()
        comm.all_reduce(buffer, op)
        assert buffer.view(np.uint8).tolist() == expected.astype(np.uint8).tolist(), op
        output = np.empty(15, bool)
        comm.start_all_reduce_into(own, output, op).wait()
        assert output.view(np.uint8).tolist() == expected.astype(np.uint8).tolist(), op
    buffer = own.copy()
    comm.reduce_scatter(memoryview(buffer))
    start, end = comm.block(15)
    np.testing.assert_array_equal(buffer.view(np.uint8)[start:end], any_of[start:end])
    comm.broadcast(buffer, 0)
    comm.all_reduce(buffer, dtype="u8")
    assert buffer.view(np.uint8).max() == ranks
    refused(ValueError, "avg of bool is not defined", lambda: comm.all_reduce(own, "avg"))
    refused(TypeError, "pre-mul-sum of bool", lambda: comm.all_reduce(own, factor=2))
    other = np.zeros(15, np.uint8)
    refused(TypeError, "got u8 and bool", lambda: comm.all_reduce_into(other, own))


@case("operator names in capitals")
def _():
    for op in ["SUM", "Sum"]:
        buffer = np.ones(3)
        comm.all_reduce(buffer, op)
        assert buffer[0] == comm.world_size


@case("invalid calls")
def _():
    """An invalid call sends nothing, so the other ranks are not affected."""
    numbers = np.zeros((4, 4), np.float32)
    refused(BufferError, "not contiguous", lambda: comm.all_reduce(numbers.T[1:]))
    refused(BufferError, "read-only", lambda: comm.all_reduce(b"bytes"))
    refused(TypeError, "format 'Zd'", lambda: comm.all_reduce(np.zeros(3, complex)))
    refused(TypeError, "format '>f'", lambda: comm.all_reduce(np.zeros(3, ">f4")))
    objects = np.array([{}, {}])
    refused(TypeError, "format 'O'", lambda: comm.all_reduce(objects, dtype="u64"))
    refused(TypeError, "format 'O'", lambda: comm.start_send(objects, 0, dtype="u64"))
    for wrong in [[1, 2, 3], 1.5, None]:
        words = f"'{type(wrong).__name__}' is not a buffer; pass a NumPy array or array.array"
        refused(TypeError, words, lambda: comm.all_reduce(wrong))
    names = "unknown operator 'mean'; use one of: sum prod min max avg band bor bxor"
    refused(ValueError, names, lambda: comm.all_reduce(numbers, "Mean"))
    refused(ValueError, "must be 'sum'", lambda: comm.all_reduce(numbers, "max", factor=2))
    refused(ringtree.UsageError, "band", lambda: comm.all_reduce(numbers, "band"))
    refused(ringtree.UsageError, "99 is out of range", lambda: comm.broadcast(numbers, 99))
    other = np.zeros(4, np.int32)
    refused(TypeError, "got f32 and i32", lambda: comm.all_reduce_into(numbers, other))
    short = np.zeros(3, np.float32)
    refused(ringtree.UsageError, "must have", lambda: comm.all_reduce_into(numbers, short))
    unaligned = memoryview(bytearray(9))[1:]
    refused(ringtree.UsageError, "not aligned", lambda: comm.all_reduce(unaligned, dtype="f64"))
    for wrong in [
        np.array([{}, {}]),
        np.zeros(3, ">f4"),
        np.zeros(3, complex),
        np.zeros(3),
        np.zeros(8, bool),
        (ctypes.c_void_p * 3)(),
    ]:
        for name in ["f32", "bf16"]:
            refused(TypeError, "format", lambda: comm.all_reduce(wrong, dtype=name))
    refused(ValueError, "unknown dtype", lambda: comm.all_reduce(numbers, dtype="f31"))
    refused(ValueError, "-1 is out of range", lambda: comm.broadcast(numbers, -1))
    refused(ValueError, "out of range", lambda: comm.send(numbers, 0, tag=1 << 40))
    refused(ValueError, "[2, -1]", lambda: comm.all_gather_into(short, short, counts=[2, -1]))
    refused(ValueError, "both buffers", lambda: comm.all_to_all_into(short, short, send=[1]))
    refused(ValueError, "not a valid timeout", lambda: setattr(comm, "timeout", -1))
    work = comm.start_send(short, (comm.rank + 1) % comm.world_size)
    refused(ValueError, "not a valid timeout", lambda: work.wait(float("nan")))
    comm.recv(np.empty(3, np.float32), (comm.rank - 1) % comm.world_size)
    work.wait(1e19)
    comm.barrier()


@case("groups")
def _():
    pair = comm.split(comm.rank // 2, 0)
    one = np.array([comm.rank])
    pair.all_reduce(one)
    assert one[0] == 4 * (comm.rank // 2) + 1
    assert comm.split(None) is None
    with comm.subgroup([comm.rank]) as alone:
        assert (alone.rank, alone.world_size) == (0, 1)
    pair.close()
    # Rank 0 assigns the IDs of groups, so it must not leave before all groups exist.
    comm.barrier()


if __name__ == "__main__":
    comm = ringtree.init()
    run_all(CASES, comm.rank)
