"""transformers' Trainer: plain, bf16 with accumulation, LoRA, and FSDP2."""

import tempfile
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback
from transformers import TrainingArguments, set_seed

import chosen
import common

# transformers asks a GPU's library even if it uses no GPU.
torch.cuda.is_current_stream_capturing = lambda: False
SIZES = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
LORA = dict(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian")
OPTIONS = dict(use_cpu=True, per_device_train_batch_size=4, max_steps=15, learning_rate=1e-3)
SAVING = dict(save_steps=10, eval_strategy="steps", eval_steps=10, report_to=[], disable_tqdm=True)


class Clock(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.began)


def data(count):
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 1000, (32,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(has_adapters=False, **more):
    set_seed(0)
    net = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **SIZES))
    if has_adapters:
        net = get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", **LORA))
    named = {} if chosen.IS_FIRST else {"ddp_backend": common.BACKEND}
    clock = Clock()
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(place, **OPTIONS, **SAVING, **named, **more)
        trainer = Trainer(net, arguments, None, data(320), data(64), callbacks=[clock])
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        chosen.check()
        trainer.accelerator.wait_for_everyone()
    return loss, clock.seconds[common.WARM_UP_STEPS :]


chosen.create_group_if_first()
common.run("Trainer", trained)
common.run("Trainer, bf16", lambda: trained(bf16=True, gradient_accumulation_steps=2))
common.run("Trainer, LoRA", lambda: trained(has_adapters=True))
common.run("Trainer, FSDP2", lambda: trained(fsdp="full_shard", fsdp_config={"fsdp_version": 2}))
