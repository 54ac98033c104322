"""Generates tokens with vLLM and a small random model, split across two processes on CPUs.

    VLLM_PLUGINS=ringtree python vllm_serve.py --model DIRECTORY [OPTION OF VLLM ...]

Prints tokens per second and a CRC of the tokens, which is the same for all transports. With
`--worker-cls vllm_serve.GlooWorker` and without VLLM_PLUGINS, vLLM uses torch.distributed.
"""
import os
import time
import zlib

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # each process has one thread
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, EngineArgs, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.worker.cpu_worker import CPUWorker

MODEL = dict(hidden_size=512, intermediate_size=1408, num_attention_heads=8, vocab_size=8192)
ENGINE = dict(
    tensor_parallel_size=2, distributed_executor_backend="mp", dtype="bfloat16", max_model_len=512,
    skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 28, enable_prefix_caching=False)


class GlooWorker(CPUWorker):
    def init_device(self):
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
        super().init_device()


if __name__ == "__main__":
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    for name, number in {"layers": 24, "tokens": 64, "repeat": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.set_defaults(**ENGINE)
    options = vars(parser.parse_args())
    layers, tokens, repeat = map(options.pop, ("layers", "tokens", "repeat"))
    if not os.path.exists(options["model"]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **MODEL))
        model.bfloat16().save_pretrained(options["model"])
    if options["node_rank"]:  # this program runs once per host, and this is not the first host
        config = EngineArgs(**options).create_engine_config(UsageContext.LLM_CLASS, headless=True)
        MultiprocExecutor(config, monitor_workers=False).start_worker_monitor(inline=True)
        raise SystemExit("a worker has exited")
    llm = LLM(**options)
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for batch in 1, 8:
        prompts = [{"prompt_token_ids": [i + 3 * j for j in range(16)]} for i in range(batch)]
        seconds = []
        for _ in range(1 + repeat):  # the first round is a warm-up
            start = time.perf_counter()
            found = [list(each.outputs[0].token_ids) for each in llm.generate(prompts, sampling)]
            seconds.append(time.perf_counter() - start)
        speed = batch * tokens / sorted(seconds[1:])[repeat // 2]
        print(f"batch {batch}: {speed:.1f} tokens/s, CRC {zlib.crc32(str(found).encode()):08x}")
