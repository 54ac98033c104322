"""A group with a device_id, and a mesh whose groups do not contain every rank."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import common

dist.init_process_group(common.BACKEND, device_id=torch.device("cpu:0"))
world = dist.get_world_size()


def whole():
    numbers = torch.ones(2)
    dist.all_reduce(numbers)
    dist.barrier()
    return numbers.sum().item(), []


def mesh():
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("rows", "columns"))
    numbers = torch.ones(2)
    dist.all_reduce(numbers, group=grid["rows"].get_group())
    dist.all_reduce(numbers, group=grid["rows", "columns"]._flatten().get_group())
    assert numbers.eq(2 * world).all()
    return numbers.sum().item(), []


common.run("device_id", whole)
common.run("device_id, mesh", mesh)
dist.destroy_process_group()
