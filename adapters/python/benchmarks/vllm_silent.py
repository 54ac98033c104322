"""A worker of vLLM that does not communicate, to measure how long vLLM takes without communication.

The tokens are wrong. Pass `--worker-cls vllm_silent.SilentWorker` to `programs/vllm_serve.py`.
"""

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.v1.worker.cpu_worker import CPUWorker


def repeated(self, input_, dim=-1):
    return torch.cat([input_] * self.world_size, dim)


def gathered(self, input_, dst=0, dim=-1):
    return repeated(self, input_, dim) if self.rank_in_group == dst else None


class SilentWorker(CPUWorker):
    def init_device(self):
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
        CpuCommunicator.all_reduce = lambda self, input_: input_
        CpuCommunicator.all_gather = repeated
        CpuCommunicator.gather = gathered
        super().init_device()
