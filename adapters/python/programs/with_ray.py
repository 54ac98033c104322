"""Ray Train: TorchTrainer with prepare_model."""

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = str(Path(__file__).parent)


def train(config):
    """Trains in a worker of Ray, which has a different environment and directory."""
    sys.path.insert(0, config["here"])
    os.environ.update(config["variables"])
    import chosen
    import common
    import ray.train.torch
    import torch
    import torch.distributed as dist

    net = ray.train.torch.prepare_model(common.model())
    chosen.check()
    assert type(net).__name__ == "DistributedDataParallel"
    found = common.train(net, torch.optim.AdamW(net.parameters(), 1e-3), dist.get_rank())
    if dist.get_rank() == 0:
        Path(config["result"]).write_text(json.dumps(found))


def trained():
    with tempfile.TemporaryDirectory() as place:
        ray.init(num_cpus=WORLD + 1, include_dashboard=False, log_to_driver=False)
        names = [name for name in os.environ if name.startswith("PROGRAM_")]
        config = {"here": HERE, "variables": {name: os.environ[name] for name in names}}
        TorchTrainer(
            train,
            train_loop_config={**config, "result": f"{place}/result"},
            torch_config=TorchConfig(backend=common.BACKEND),
            scaling_config=ScalingConfig(num_workers=WORLD, use_gpu=False),
            run_config=RunConfig(storage_path=place),
        ).fit()
        ray.shutdown()
        return json.loads(Path(place, "result").read_text())


# One process of the launcher suffices. Ray starts its workers without the launcher's variables.
if __name__ == "__main__" and os.environ["RANK"] == "0":
    WORLD = int(os.environ["WORLD_SIZE"])
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC", "MASTER_", "GROUP_", "ROLE_")) or "RANK" in name:
            del os.environ[name]
    import common
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    common.run("Ray Train", trained)
