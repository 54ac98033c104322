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
    if internals.operator_kind(opts.reduceOp) != dist.ReduceOp.RedOpType.SUM:
        raise UsageError("sparse tensors support only SUM")
    own = tensor.detach().coalesce()
    places, values = own.indices().t().contiguous(), own.values()
    head = torch.tensor([places.shape[0], own.sparse_dim(), *own.shape])
    heads = head.new_empty(backend.size(), len(head))
    _gathered(backend, [(head, list(heads.unbind()))], opts)
    counts, shapes = heads[:, 0], heads[:, 1:]
    if not shapes.eq(head[1:]).all():
        every = {f"{each[1:]} ({each[0]} sparse)" for each in shapes.tolist()}
        raise UsageError(
            "all ranks must pass sparse tensors with the same dimensions; got "
            f"{', '.join(sorted(every))}"
        )
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
