"""A program for several ranks: compares every operation on every type with torch's arithmetic.

The program does not import ringtree. torch finds the backend by its name.
"""

import sys

import torch
import torch.distributed as dist

from cases import run_all

torch.set_num_threads(1)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, torch.float8_e4m3fn, torch.uint16, torch.uint64]
SIZES = [1, 7, 4096, 100_003]

CASES = {}


def case(name):
    def note(function):
        assert name not in CASES
        CASES[name] = function
        return function

    return note


def own(dtype, count, rank, seed=0):
    """Returns the numbers of rank `rank`. They are small, so every sum and product is exact."""
    random = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 3, (count,), generator=random)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + rank).double()).to(dtype)
    if dtype == torch.bool:
        return numbers > 0
    return numbers.to(torch.float32).to(dtype) if dtype.is_floating_point else numbers.to(dtype)


def all_of(dtype, count, seed=0):
    return [own(dtype, count, rank, seed) for rank in range(dist.get_world_size())]


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    raw = (torch.uint8,)
    assert torch.equal(found.contiguous().view(*raw), expected.contiguous().view(*raw)), (
        found.flatten()[:8],
        expected.flatten()[:8],
    )


def reduced(op, parts):
    stack = torch.stack(parts)
    wide = stack
    if not stack.dtype.is_complex and stack.dtype != torch.bool:
        wide = stack.double() if stack.dtype.is_floating_point else stack.long()
    if stack.dtype == torch.bool:
        name = {"SUM": "any", "MAX": "any", "BOR": "any"}.get(op, "all")
        if op == "BXOR":
            return stack.sum(0) % 2 == 1
        return getattr(stack, name)(0)
    if op == "AVG":
        if stack.dtype.is_complex:
            return stack.mean(0)
        return (wide.sum(0) / len(parts)).to(stack.dtype)
    if op in ("BAND", "BOR", "BXOR"):
        result = parts[0]
        for part in parts[1:]:
            result = {"BAND": result & part, "BOR": result | part, "BXOR": result ^ part}[op]
        return result
    result = {
        "SUM": lambda: wide.sum(0),
        "PRODUCT": lambda: wide.prod(0),
        "MIN": lambda: wide.min(0).values,
        "MAX": lambda: wide.max(0).values,
    }[op]()
    return result.to(stack.dtype)


OF_NUMBERS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]
OF_BITS = ["BAND", "BOR", "BXOR"]


def pairs():
    for dtype in FLOATS:
        yield from ((dtype, op) for op in OF_NUMBERS)
    for dtype in INTEGERS:
        yield from ((dtype, op) for op in OF_NUMBERS + OF_BITS)
    yield from ((torch.bool, op) for op in ["SUM", "PRODUCT", "MIN", "MAX", *OF_BITS])
    for dtype in COMPLEX:
        yield from ((dtype, op) for op in ["SUM", "AVG"])


def short(dtype):
    return str(dtype).removeprefix("torch.")


def reductions(dtype, op):
    """Defines the cases of the three collectives that reduce."""
    name = f"{short(dtype)} {op}"
    operator = getattr(dist.ReduceOp, op)

    @case(f"all_reduce {name}")
    def _():
        for count in SIZES:
            expected = reduced(op, all_of(dtype, count))
            tensor = own(dtype, count, dist.get_rank())
            dist.all_reduce(tensor, op=operator)
            same(tensor, expected)
            tensor = own(dtype, count, dist.get_rank())
            dist.all_reduce(tensor, op=operator, async_op=True).wait()
            same(tensor, expected)

    @case(f"reduce {name}")
    def _():
        for root in range(dist.get_world_size()):
            tensor = own(dtype, 1000, dist.get_rank())
            dist.reduce(tensor, root, op=operator)
            is_root = dist.get_rank() == root
            expected = (
                reduced(op, all_of(dtype, 1000)) if is_root else own(dtype, 1000, dist.get_rank())
            )
            same(tensor, expected)

    @case(f"reduce_scatter {name}")
    def _():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        whole = all_of(dtype, 500 * ranks)
        expected = reduced(op, whole)
        output = torch.empty(500, dtype=dtype)
        dist.reduce_scatter_tensor(output, whole[rank], op=operator)
        same(output, expected.chunk(ranks)[rank])
        same(whole[rank], own(dtype, 500 * ranks, rank))
        lengths = [10 * each + 1 for each in range(ranks)]
        uneven = [part[: sum(lengths)].split(lengths) for part in whole]
        output = torch.empty(lengths[rank], dtype=dtype)
        dist.reduce_scatter(output, list(uneven[rank]), op=operator)
        same(output, expected[: sum(lengths)].split(lengths)[rank])


def moves(dtype):
    """Defines the cases of the collectives and messages that only move data."""
    name = short(dtype)

    @case(f"broadcast {name}")
    def _():
        for root in range(dist.get_world_size()):
            for count in SIZES:
                tensor = own(dtype, count, dist.get_rank())
                dist.broadcast(tensor, root)
                same(tensor, own(dtype, count, root))

    @case(f"all_gather {name}")
    def _():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        whole = all_of(dtype, 1000)
        together = torch.empty(1000 * ranks, dtype=dtype)
        dist.all_gather_into_tensor(together, whole[rank])
        same(together, torch.cat([each.view(torch.uint8) for each in whole]).view(dtype))
        # The input is a block of the output, like in FSDP.
        again = torch.zeros(1000 * ranks, dtype=torch.uint8).to(dtype)
        again.chunk(ranks)[rank].copy_(whole[rank])
        dist.all_gather_into_tensor(again, again.chunk(ranks)[rank])
        same(again, together)
        apart = [torch.empty(each + 1, dtype=dtype) for each in range(ranks)]
        dist.all_gather(apart, whole[rank][: rank + 1])
        for each, out in enumerate(apart):
            same(out, whole[each][: each + 1])

    @case(f"gather and scatter {name}")
    def _():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        whole = all_of(dtype, 300)
        for root in range(ranks):
            outputs = [torch.empty(300, dtype=dtype) for _ in range(ranks)]
            dist.gather(whole[rank], outputs if rank == root else None, root)
            if rank == root:
                for out, expected in zip(outputs, whole):
                    same(out, expected)
            output = torch.empty(300, dtype=dtype)
            dist.scatter(output, whole if rank == root else None, root)
            same(output, whole[rank])

    @case(f"all_to_all {name}")
    def _():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        # Rank i sends i + 2j + 1 rows to rank j.
        rows = [[i + 2 * j + 1 for j in range(ranks)] for i in range(ranks)]
        sent = [
            [own(dtype, 3 * rows[i][j], i, seed=j).view(-1, 3) for j in range(ranks)]
            for i in range(ranks)
        ]
        received = [torch.empty_like(sent[i][rank]) for i in range(ranks)]
        dist.all_to_all(received, sent[rank])
        for i in range(ranks):
            same(received[i], sent[i][rank])
        flat = [each.view(torch.uint8) for each in sent[rank]]
        inputs = torch.cat(flat).view(dtype)
        incoming = [rows[i][rank] for i in range(ranks)]
        output = torch.empty(sum(incoming), 3, dtype=dtype)
        dist.all_to_all_single(output, inputs, incoming, rows[rank])
        for i, out in enumerate(output.view(torch.uint8).split(incoming)):
            same(out.view(dtype), sent[i][rank])
        even = own(dtype, 4 * ranks, rank)
        output = torch.empty_like(even)
        dist.all_to_all_single(output, even)
        for i in range(ranks):
            same(output[4 * i : 4 * i + 4], own(dtype, 4 * ranks, i)[4 * rank : 4 * rank + 4])

    @case(f"send and recv {name}")
    def _():
        ranks, rank = dist.get_world_size(), dist.get_rank()
        to, source = (rank + 1) % ranks, (rank - 1) % ranks
        for count in SIZES:
            tensor = torch.empty(count, dtype=dtype)
            if rank % 2 == 0:
                dist.send(own(dtype, count, rank), to)
                dist.recv(tensor, source)
            else:
                dist.recv(tensor, source)
                dist.send(own(dtype, count, rank), to)
            same(tensor, own(dtype, count, source))
        tensor = torch.empty(count, dtype=dtype)
        exchange = [
            dist.P2POp(dist.isend, own(dtype, count, rank), to),
            dist.P2POp(dist.irecv, tensor, source),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        same(tensor, own(dtype, count, source))


for one, operator_name in pairs():
    reductions(one, operator_name)
for one in MOVED:
    moves(one)


if __name__ == "__main__":
    dist.init_process_group("ringtree")
    run_all(CASES, dist.get_rank())
    dist.destroy_process_group()
    assert "ringtree" in sys.modules
