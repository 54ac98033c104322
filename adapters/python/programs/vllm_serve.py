"""Generates text with vLLM and a small random model, split across two processes on CPUs.

    VLLM_PLUGINS=ringtree python vllm_serve.py MODEL_DIRECTORY

Prints tokens per second and a digest of the tokens. The digest is the same for all transports:
with `VLLM_PLUGINS=` vLLM uses its own shared memory, and with `--gloo` torch.distributed. With
`--nodes 2`, run the program once per host. The program on host 1 runs until you stop it.
"""

import argparse
import hashlib
import os
import time

# This program has one thread per process and leaves the choice of cores to the system.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, EngineArgs, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.worker.cpu_worker import CPUWorker

SHAPE = dict(hidden_size=512, intermediate_size=1408, num_attention_heads=8, vocab_size=8192)


class GlooWorker(CPUWorker):
    """A worker that does not use vLLM's shared memory, as on different hosts."""

    def init_device(self):
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
        super().init_device()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pipeline", action="store_true", help="split layers, not tensors")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--gloo", action="store_true", help="use torch.distributed")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--address", default="127.0.0.1", help="address of host 0")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if not os.path.exists(options.model):
        torch.manual_seed(1)
        config = LlamaConfig(num_hidden_layers=options.layers, **SHAPE)
        LlamaForCausalLM(config).bfloat16().save_pretrained(options.model)
    arguments = dict(
        model=options.model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=512,
        kv_cache_memory_bytes=1 << 28, enforce_eager=options.eager, max_num_seqs=8,
        enable_prefix_caching=False, distributed_executor_backend="mp", nnodes=options.nodes,
        node_rank=options.node_rank, master_addr=options.address,
        tensor_parallel_size=1 if options.pipeline else 2,
        pipeline_parallel_size=2 if options.pipeline else 1,
        worker_cls="vllm_serve.GlooWorker" if options.gloo else "auto",
    )
    if options.node_rank:
        config = EngineArgs(**arguments).create_engine_config(headless=True)
        MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)
        return
    llm = LLM(**arguments)
    sampling = SamplingParams(
        temperature=0, max_tokens=options.tokens, ignore_eos=True, detokenize=False
    )
    for batch in options.batch:
        prompts = [{"prompt_token_ids": [i + 3 * j for j in range(16)]} for i in range(batch)]
        for _ in range(options.repeat):
            start = time.perf_counter()
            results = llm.generate(prompts, sampling, use_tqdm=False)
            taken = time.perf_counter() - start
        tokens = [list(result.outputs[0].token_ids) for result in results]
        digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]
        print(f"batch {batch}: {batch * options.tokens / taken:.1f} tokens/s, {digest}", flush=True)


if __name__ == "__main__":
    main()
