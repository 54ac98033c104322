"""Programs for several ranks that end in various ways. `ends.py NAME` runs the function NAME."""

import os
import signal
import sys
import threading
import time

NAME = sys.argv[1]


def torch_group():
    import datetime

    import torch.distributed as dist

    dist.init_process_group("ringtree", timeout=datetime.timedelta(seconds=60))
    return dist


def show(error):
    """Prints the fields of an error for the test to check."""
    fields = "rank", "peer", "operation", "sequence", "missing"
    print(type(error).__name__, *(getattr(error, name) for name in fields), sep="|")
    print("text|" + str(error))


def killed():
    import torch

    dist = torch_group()
    import ringtree

    dist.all_reduce(torch.ones(3))
    try:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(3), async_op="async" in sys.argv).wait()
    except ringtree.Error as error:
        show(error)
        assert isinstance(error, RuntimeError) and isinstance(error, ConnectionError)


def killed_in_training():
    import torch
    from torch.nn.parallel import DistributedDataParallel

    dist = torch_group()
    import ringtree

    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        print("text|" + str(error))
    from ringtree.torch import communicator

    show(communicator().error())
    try:
        dist.barrier()
    except ringtree.PeerLostError as error:
        show(error)


def mismatched():
    import torch

    dist = torch_group()
    import ringtree

    tensor = torch.ones(3 + dist.get_rank())
    try:
        dist.all_reduce(tensor)
    except ringtree.MismatchError as error:
        show(error)


def late():
    import datetime

    import torch

    dist = torch_group()
    dist.set_timeout(datetime.timedelta(seconds=2), dist.group.WORLD)
    import ringtree

    if dist.get_rank() == 1:
        time.sleep(5)
    try:
        dist.all_reduce(torch.ones(3))
    except ringtree.DeadlineError as error:
        show(error)
        assert isinstance(error, TimeoutError)


def interrupt_soon():
    """Sends this process a SIGINT, like Ctrl-C, at a time when this thread waits."""
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()


def interrupted():
    """The user interrupts rank 0 while it waits for the other ranks: in a call, for a call that
    another thread of the process runs, or while it leaves before such a call has completed.
    """
    import torch

    dist = torch_group()
    import ringtree

    size = dist.get_world_size()
    try:
        dist.barrier()
        if dist.get_rank() == 0:
            interrupt_soon()
        if dist.get_rank() == 0 and sys.argv[2] != "in a call":
            parts = [torch.ones(3) for _ in range(size)]
            work = dist.all_gather(parts, torch.ones(3), async_op=True)
            if sys.argv[2] == "waiting":
                work.wait()
            elif sys.argv[2] == "future":
                work.get_future()
            else:
                dist.destroy_process_group()
        else:
            time.sleep(3 if dist.get_rank() else 0)
            dist.all_reduce(torch.ones(3))
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    except ringtree.Error as error:
        show(error)


def interrupted_without_torch():
    """The user interrupts rank 0 while it waits for rank 1."""
    import ringtree

    def batch(comm):
        with comm.batch() as batch:
            batch.recv(bytearray(8), 1)

    waits = {
        "started": lambda comm: comm.start_all_gather(bytearray(9)).wait(),
        "queued": lambda comm: comm.start_all_reduce_into(one := bytearray(9), one).wait(),
        "timed": lambda comm: comm.start_barrier().wait(30),
        "batch": batch,
        "recv_any": lambda comm: comm.recv_any(bytearray(8)),
        "sendrecv": lambda comm: comm.sendrecv(b"12", 1, bytearray(8), 1),
        "value": lambda comm: comm.recv_value(1),
        "values": lambda comm: comm.without_timeout().all_gather_value(0),
    }
    with ringtree.init() as comm:
        comm.barrier()
        try:
            if comm.rank == 0:
                interrupt_soon()
                waits[sys.argv[2]](comm)
            else:
                time.sleep(3)
                comm.barrier()
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
            if sys.argv[2] == "timed":
                comm.abort("the wait was interrupted; the call is still in flight")
        except ringtree.Error as error:
            show(error)


def interrupted_in_release():
    """The user interrupts rank 0 while it releases an object, which involves waiting for rank 1."""
    import ringtree

    comm = ringtree.init()
    comm.barrier()
    if comm.rank == 1:
        try:
            comm.recv(bytearray(1), 0)
        except ringtree.Error as error:
            show(error)
        return
    if "handler" in sys.argv:

        def handler(*_):
            raise LookupError

        signal.signal(signal.SIGINT, handler)
    work = comm.start_recv(bytearray(4), 1)
    interrupt_soon()
    try:
        if sys.argv[2] == "work":
            comm.close()
            del work
        else:
            del work
            del comm
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
    except (KeyboardInterrupt, LookupError) as error:
        print(type(error).__name__)


def handler_waits_for_interrupted_call():
    """A signal handler waits for the call that it has interrupted, on the same thread."""
    import torch

    dist = torch_group()
    import ringtree

    tensor = torch.ones(3)
    dist.barrier()
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)

        def handler(*_):
            try:
                work.wait()
            except ringtree.UsageError:
                print("usage error")

        signal.signal(signal.SIGINT, handler)
        interrupt_soon()
        work.wait()
    else:
        time.sleep(3)
        dist.all_reduce(tensor)
    assert tensor.tolist() == [dist.get_world_size()] * 3
    dist.destroy_process_group()


def interrupted_in_init():
    import ringtree

    interrupt_soon()
    try:
        ringtree.init()
    except KeyboardInterrupt:
        print("KeyboardInterrupt")


def repeated_init():
    """Uses one store for all groups, because torch's own store is destroyed with its group."""
    import torch
    import torch.distributed as dist

    rank, host, port = (os.environ[name] for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    store = dist.TCPStore(host, int(port), dist_size(), rank == "0")
    for each in range(int(sys.argv[2])):
        prefixed = dist.PrefixStore(str(each), store)
        dist.init_process_group("ringtree", store=prefixed, rank=int(rank), world_size=dist_size())
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        dist.destroy_process_group()
        assert tensor.tolist() == [dist_size()] * 3, each
    threads = os.listdir("/proc/self/task")
    files = os.listdir("/proc/self/fd")
    print(f"threads {len(threads)} files {len(files)}")


def dist_size():
    return int(os.environ["WORLD_SIZE"])


def exits_without_destroy():
    """Exits with calls in flight and without destroying the groups."""
    import torch

    dist = torch_group()
    group = dist.new_group()
    work = dist.all_reduce(torch.ones(1000), async_op=True, group=group)
    dist.all_gather([torch.empty(3)] * dist_size(), torch.ones(3), async_op=True)
    del work
    if "slow" in sys.argv and dist.get_rank() == 1:
        time.sleep(1)
    dist.barrier()


def exits_without_close():
    """Rank 1 exits without closing its communicator. Python never frees it, because a daemon thread
    holds it."""
    import ringtree

    comm = ringtree.Communicator.from_env()
    comm.barrier()
    holder = threading.Thread(target=lambda _: threading.Event().wait(), args=(comm,), daemon=True)
    holder.start()
    if comm.rank == 0:
        try:
            comm.barrier()
        except ringtree.PeerLostError as error:
            show(error)


def sends_before_exit():
    """Rank 1 closes its communicator or exits before rank 0 receives its message."""
    import array

    import ringtree

    global kept
    comm = ringtree.init()
    comm.barrier()
    # Longer than what a link holds.
    numbers = array.array("f", [1.0]) * 1_000_000
    if comm.rank == 1:
        kept = comm, comm.start_send(numbers, 0)
        if "close" in sys.argv:
            comm.close()
            assert kept[1].is_finished()
        return
    time.sleep(1)
    received = array.array("f", bytes(4 * len(numbers)))
    comm.recv(received, 1)
    assert received == numbers


def raises_with_handle():
    """Rank 1 raises an exception while it holds only a handle to its communicator."""
    import ringtree

    comm = ringtree.init().with_timeout(60)
    comm.barrier()
    if comm.rank == 1:
        raise KeyError("my bug")
    try:
        comm.barrier()
    except ringtree.Error as error:
        show(error)


def raises_while_thread_waits():
    """Rank 1 raises an exception while the profiler's thread waits for a call."""
    import torch
    from torch.profiler import profile

    import ringtree

    dist = torch_group()
    dist.barrier()
    if dist.get_rank() == 1:
        with profile():
            dist.all_reduce(torch.ones(3), async_op=True)
            raise KeyError("my bug")
    try:
        dist.recv(torch.ones(3), 1)
    except ringtree.Error as error:
        show(error)


def profiles_many_calls():
    """Waits for a call under the profiler while several hundred receives are in flight."""
    import torch
    from torch.profiler import profile

    dist = torch_group()
    numbers = [torch.zeros(1) for _ in range(300)]
    if dist.get_rank() == 0:
        with profile():
            works = [dist.irecv(each, 1) for each in numbers]
            dist.barrier()
            for work in works:
                work.wait()
    else:
        dist.barrier()
        for each in numbers:
            dist.send(each, 0)
    dist.destroy_process_group()


def drops_works_in_flight():
    """The interpreter frees works in flight while the library's thread releases their buffers."""
    import array

    import ringtree

    numbers = array.array("f", bytes(1 << 18))
    with ringtree.init() as comm:
        for _ in range(250):
            for _ in range(16):
                if comm.rank == 0:
                    comm.start_send(numbers, 1)
                else:
                    comm.recv(numbers, 0)
        comm.barrier()


def forked():
    """A forked child of rank 0, such as a worker of a data loader, exits normally and harms no
    rank. Its calls are errors, even while its parent has calls in flight."""
    import torch

    dist = torch_group()
    import ringtree
    from ringtree.torch import all_reduce_, communicator

    numbers = torch.ones(3)
    every = [torch.empty(3)] * dist_size()
    dist.all_gather(every, numbers, async_op=True).wait()
    token = torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(token, 0)
    works = [
        dist.all_reduce(torch.ones(3), async_op=True),
        dist.all_gather(every, numbers, async_op=True),
    ]
    if dist.get_rank() == 0:
        calls = [
            *(work.wait for work in works),
            lambda: dist.all_reduce(numbers),
            lambda: dist.all_gather(every, numbers, async_op=True),
            lambda: dist.send(numbers, 1),
            lambda: all_reduce_(numbers),
            communicator().barrier,
            lambda: communicator().subgroup([0]),
        ]
        child = os.fork()
        if child == 0:
            for call in calls:
                try:
                    call()
                except ringtree.UsageError as error:
                    assert "forked" in str(error), error
                else:
                    sys.exit(1)
            del works, calls, call
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        dist.send(token, 1)
    for work in works:
        work.wait()
    dist.all_reduce(numbers)
    assert numbers.tolist() == [dist_size()] * 3
    dist.destroy_process_group()


def forked_child_trains():
    """A process trains, and then its forked child trains in a separate group."""
    import torch
    import torch.distributed as dist

    def train():
        dist.init_process_group("ringtree", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        dist.destroy_process_group()

    torch.set_num_threads(1)
    train()
    child = os.fork()
    if child == 0:
        # A child that hangs fails the test.
        signal.alarm(60)
        train()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def raises_with_calls_in_flight():
    import torch

    dist = torch_group()
    if dist.get_rank() == 1:
        for _ in range(3):
            dist.all_gather([torch.empty(3)] * dist_size(), torch.ones(3), async_op=True)
        raise ValueError("no such sample")
    import ringtree

    try:
        for _ in range(20):
            dist.all_gather([torch.empty(3)] * dist_size(), torch.ones(3))
    except ringtree.Error as error:
        show(error)


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


RAISED = {
    "plain": KeyError("my bug"),
    "long": ValueError("my\nbug " * 1000),
    "unprintable": Unprintable(),
    "exit": SystemExit(3),
}


def raised_in_with():
    """Rank 1 raises an exception inside a `with` statement and catches it outside."""
    import ringtree

    with ringtree.init() as whole:
        part = whole.duplicate()
        try:
            with part:
                part.barrier()
                if part.rank == 1:
                    raise RAISED[sys.argv[2]]
                part.barrier()
        except ringtree.Error as error:
            show(error)
        except (KeyError, ValueError, Unprintable, SystemExit):
            print("text|own")
        # The other communicator still works.
        whole.barrier()


def raised_uncaught():
    """Rank 1 exits because of an uncaught exception."""
    if "torch" in sys.argv:
        dist = torch_group()
        barrier, rank = dist.barrier, dist.get_rank()
    import ringtree

    if "torch" not in sys.argv:
        comm = ringtree.init()
        part = comm.split(0)
        barrier, rank = part.barrier, comm.rank
    try:
        # The abort may arrive before the other ranks have left this barrier.
        barrier()
        if rank == 1:
            sys.excepthook = lambda *_: print("text|own hook")
            if "interactive" in sys.argv:
                # Python sets this in interactive mode.
                sys.ps1 = "> "
            raise RAISED[sys.argv[2]]
        barrier()
    except ringtree.Error as error:
        show(error)


def invalid_calls():
    """Each invalid call raises an error with a one-line message, and the group still works."""
    import torch

    dist = torch_group()
    import ringtree

    def show_error_of(act):
        try:
            act()
        except ringtree.UsageError as error:
            assert "\n" not in str(error)
            print("text|" + str(error))
        else:
            raise AssertionError("the call raised no error")

    numbers = torch.ones(3)
    show_error_of(lambda: dist.recv(torch.ones(0)))
    show_error_of(lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG))
    show_error_of(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND))
    show_error_of(lambda: dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn)))
    dist.all_reduce(numbers)
    assert numbers.tolist() == [2, 2, 2]
    dist.destroy_process_group()


def trained():
    """A plain training script for any launcher. It prints a sum that must be equal on all ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    dist = torch_group()
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    print("weights", sum(each.double().sum().item() for each in model.parameters()))
    dist.destroy_process_group()


globals()[NAME]()
