"""The model, data, training loop and result lines that the programs share.

The runner sets PROGRAM_BACKEND to the backend's name. Otherwise, a program is the same for Gloo and
for ringtree.
"""

import hashlib
import json
import math
import os
import statistics
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

BACKEND = os.environ["PROGRAM_BACKEND"]
WARM_UP_STEPS = 3
torch.set_num_threads(1)


def start():
    """Creates the default process group. Returns this rank and the number of ranks."""
    dist.init_process_group(BACKEND)
    return dist.get_rank(), dist.get_world_size()


def model(width=128, layers=2, seed=0):
    """Returns a small transformer. Its weights depend only on the sizes and the seed."""
    torch.manual_seed(seed)
    blocks = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(nn.Embedding(1000, width), *blocks, nn.Linear(width, 1000))


def batch(step, rank, count=4, length=32):
    """Returns the inputs and targets of a rank in a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, 1000, (count, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


def mean_over_ranks(loss):
    """Returns the mean of a number over all ranks."""
    total = torch.tensor([float(loss)], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(net, optimizer, rank, steps=15):
    """Trains a model. Returns the mean of the last losses, and the seconds of each step."""
    loss, seconds = train_alone(net, optimizer, rank, steps)
    return mean_over_ranks(loss), seconds[WARM_UP_STEPS:]


def train_alone(net, optimizer, rank, steps):
    """Trains a model. Returns this rank's last loss, and the seconds of each step."""
    seconds = []
    for step in range(steps):
        inputs, targets = batch(step, rank)
        began = time.perf_counter()
        loss = loss_of(net(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return loss.item(), seconds


def train_on_all_data(net, optimizer, world, steps):
    """Trains a model on the data of all ranks, without communication. Returns the last loss."""
    for step in range(steps):
        parts = [batch(step, rank) for rank in range(world)]
        loss = sum(loss_of(net(inputs), targets) for inputs, targets in parts) / world
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def timed(step, count):
    """Calls a function with the numbers of `count` steps. Returns its last result, and seconds."""
    seconds = []
    for at in range(count):
        began = time.perf_counter()
        found = step(at)
        seconds.append(time.perf_counter() - began)
    return found, seconds[WARM_UP_STEPS:]


def digest(tensors):
    """Returns a digest of the tensors' bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        near = tensor.detach().contiguous()
        found.update(near.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def distance(tensors, others):
    """Returns the norm of the difference between two lists of tensors."""
    pairs = zip(tensors, others, strict=True)
    return math.sqrt(sum((a.detach().double() - b.double()).square().sum() for a, b in pairs))


def check_replicas(net):
    """Raises AssertionError if the ranks have different weights."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, digest(net.parameters()))
    assert len(set(found)) == 1, "the ranks have different weights"


def print_line(kind, contents):
    # Another rank's line may not have ended.
    print(f"\n{kind} {json.dumps(contents)}", flush=True)


def report(name, value, seconds=(), rank=None):
    """Prints a case's result on rank 0: a value that must not depend on the backend, and times."""
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    if rank == 0:
        ms = 1000 * statistics.median(seconds) if seconds else None
        print_line("RESULT", {"case": name, "value": value, "ms": ms})


def run(name, case):
    """Runs a case, which returns a value and seconds. If it fails, prints the error and returns.

    Skips the case if PROGRAM_CASE is set to something that its name does not contain.
    """
    if os.environ.get("PROGRAM_CASE", "") not in name:
        return
    print_line("START", {"case": name})
    try:
        value, seconds = case()
        assert value == value, "the value is not a number"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rpartition('site-packages/')[2]}:{last.lineno}"
        found = {
            "case": name,
            "rank": os.environ.get("RANK"),
            "error": f"{type(error).__name__}: {error}"[:600],
            "at": place,
        }
        print_line("FAILED", found)
    else:
        report(name, value, seconds)
