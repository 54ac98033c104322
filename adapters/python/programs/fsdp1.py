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
    _, seconds = common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), rank)
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        whole = net.state_dict()
    return common.distance(whole.values(), common.model().parameters()), seconds


for name in "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD":
    strategy = ShardingStrategy[name]
    common.run(f"FSDP1, {name}", lambda strategy=strategy: trained(strategy))
dist.destroy_process_group()
