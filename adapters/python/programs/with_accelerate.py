"""accelerate: prepare, accumulation, clipping, gathered metrics and objects."""

import time

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import gather_object, set_seed
from torch.utils.data import DataLoader, TensorDataset

import chosen
import common


def accelerator():
    chosen.create_group_if_first()
    named = [] if chosen.IS_FIRST else [InitProcessGroupKwargs(backend=common.BACKEND)]
    return Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=named)


def batches():
    tokens = torch.randint(0, 1000, (320, 33), generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    return DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1)


def use_other_calls(own):
    assert own.reduce(torch.ones(3)).tolist() == [own.num_processes] * 3
    assert len(own.pad_across_processes(torch.ones(own.process_index + 1))) == own.num_processes
    assert gather_object([own.process_index]) == list(range(own.num_processes))
    own.wait_for_everyone()


def trained():
    own = accelerator()
    chosen.check()
    set_seed(0)
    net = common.model()
    net, optimizer, loader = own.prepare(net, torch.optim.AdamW(net.parameters(), 1e-3), batches())
    seconds = []
    for inputs, targets in loader:
        began = time.perf_counter()
        with own.accumulate(net):
            loss = common.loss_of(net(inputs), targets)
            own.backward(loss)
            if own.sync_gradients:
                own.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    use_other_calls(own)
    mean = own.gather_for_metrics(loss.detach()).mean().item()
    own.end_training()
    seconds = seconds[common.WARM_UP_STEPS :]
    # Every second batch communicates.
    return mean, [sum(each) for each in zip(seconds[::2], seconds[1::2])]


if __name__ == "__main__":
    common.run("accelerate", trained)
