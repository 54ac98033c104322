"""Lightning's Trainer with validation, and a metric of torchmetrics."""

import os
import time

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

import chosen
import common

DEVICES = int(os.environ["WORLD_SIZE"])
PARTS = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.metric, self.seconds = common.model(), MeanMetric(), []

    def training_step(self, batch, _):
        loss = common.loss_of(self.net(batch[0]), batch[1])
        self.metric.update(loss.detach())
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        self.log("validation", common.loss_of(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_train_batch_start(self, *_):
        self.began = time.perf_counter()

    def on_train_batch_end(self, *_):
        self.seconds.append(time.perf_counter() - self.began)

    def on_train_epoch_end(self):
        chosen.check()
        self.mean = self.metric.compute().item()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def trained():
    lightning.seed_everything(0, verbose=False)
    tokens = torch.randint(0, 1000, (64 * DEVICES, 33))
    loader = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=4, num_workers=1)
    strategy = DDPStrategy(process_group_backend=common.BACKEND)
    options = dict(accelerator="cpu", devices=DEVICES, strategy=strategy, max_epochs=1)
    module = Module()
    lightning.Trainer(**options, **dict.fromkeys(PARTS, False)).fit(module, loader, loader)
    return module.mean, module.seconds[common.WARM_UP_STEPS :]


common.run("Lightning Trainer", trained)
