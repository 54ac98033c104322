"""A program that mypy checks with --strict: each kind of call, and the type of its result."""

import array

import numpy as np
import ringtree


def program(comm: ringtree.Communicator) -> float:
    numbers = np.zeros(3, np.float32)
    total = array.array("d", [1.0])
    comm.all_reduce(numbers, "avg", dtype="f32")
    work: ringtree.Work = comm.start_all_gather_into(bytearray(1), bytearray(3), counts=[1, 1, 1])
    work.wait(timeout=1.5)
    is_finished: bool = work.is_finished()
    comm.gather_into(numbers, None, 0, counts=[3, 3, 3])
    source: int = comm.recv_any(total, tag=3)
    comm.sendrecv(total, 1, memoryview(bytearray(8)), source)
    with comm.batch() as batch:
        batch.send(numbers, 1)
        batch.recv(numbers, 1)
    settings: dict[str, int] = comm.broadcast_value({"rows": 1}, 0)
    every: list[str] | None = comm.gather_value("a", 0)
    part = comm.split(None)
    if part is not None:
        part.close()
    with comm.duplicate().with_name("losses").without_timeout() as losses:
        name: str | None = losses.info().name
    print(is_finished, settings, every, name, comm.local_rank)
    failure: ringtree.Error | None = comm.error()
    if failure is not None:
        raise failure
    return comm.with_timeout(3).timeout


if __name__ == "__main__":
    with ringtree.init(0, 1) as comm:
        program(comm)
