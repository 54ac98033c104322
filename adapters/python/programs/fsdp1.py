"""FSDP1 with three sharding strategies, and a complete state dict."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import common

rank, world = common.start()


def trained(strategy):
    net = FSDP(
        common.model(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({nn.TransformerEncoderLayer}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    found = common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), rank)
    whole = FullStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, whole):
        net.state_dict()
    return found


for name in "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD":
    strategy = ShardingStrategy[name]
    common.run(f"FSDP1, {name}", lambda strategy=strategy: trained(strategy))
dist.destroy_process_group()
