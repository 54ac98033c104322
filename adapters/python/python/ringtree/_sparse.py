"""Sums of sparse tensors, whose elements can be at different positions on each rank."""

import torch
import torch.distributed as dist

from . import _torch_internals as internals
from ._plan import Plan
from .errors import UsageError


def reduce_sparse(backend, tensor, opts):
    """Replace `tensor` with the sum of all ranks' tensors.

    Gather the elements of all ranks in rank order, and add up the elements at the same position.
    Return when the sum is complete.
    """
    if internals.operator_number(opts.reduceOp) != int(dist.ReduceOp.RedOpType.SUM):
        raise UsageError("sparse tensors support only SUM")
    own = tensor.detach().coalesce()
    places, values = own.indices().t().contiguous(), own.values()
    counts = torch.empty(backend.size(), dtype=torch.int64)
    _gathered(backend, [(torch.tensor([places.shape[0]]), list(counts.split(1)))], opts)
    parts = [
        (each, list(each.new_empty(int(counts.sum()), *each.shape[1:]).split(counts.tolist())))
        for each in (places, values)
    ]
    _gathered(backend, parts, opts)
    (_, all_places), (_, all_values) = parts
    summed = torch.sparse_coo_tensor(torch.cat(all_places).t(), torch.cat(all_values), own.shape)
    # Autograd does not see the call, as with a dense tensor.
    with torch.no_grad():
        tensor.copy_(summed.coalesce())


def _gathered(backend, parts, opts):
    plan = Plan(backend, "all_reduce")
    for own, every in parts:
        plan.add("all-gather", [own], every)
    plan.start([], opts).wait()
