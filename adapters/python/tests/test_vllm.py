"""Tests vLLM's plug-in. The tests that generate tokens are skipped if vLLM is not installed."""

import functools
import importlib.util
import os
import subprocess
import sys

import pytest
import vllm_cases

from cases import check, ends
from ranks import HERE, run

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"
)
SECONDS_MAX = 600


@functools.cache
def of_all(ranks):
    return ends(run("vllm_cases.py", ranks))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", vllm_cases.CASES)
def test_communicator(name, ranks):
    check(of_all(ranks)[name], ranks)


def output(plugins, *arguments):
    """Runs a program with these plug-ins of vLLM and returns its standard output."""
    variables = {key: each for key, each in os.environ.items() if not key.startswith("VLLM_")}
    variables.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", PYTHONPATH=str(HERE))
    if plugins is not None:
        variables["VLLM_PLUGINS"] = plugins
    end = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert end.returncode == 0, end.stdout + end.stderr
    return end.stdout


@needs_vllm
@pytest.mark.parametrize("plugins", [None, "", "other", "ringtree", "other,ringtree"])
def test_platform_is_used_only_if_named(plugins):
    show = "from vllm.platforms import current_platform as it; print(type(it), it.is_cpu())"
    is_named = "ringtree" in (plugins or "")
    last = output(plugins, "-c", show).splitlines()[-1]
    assert ("RingtreePlatform" in last) == is_named and last.endswith(" True")


MODES = {
    "tensors": ["--enforce-eager"],
    "compiled": [],
    "layers": ["--tensor-parallel-size=1", "--pipeline-parallel-size=2"],
}


@needs_vllm
@pytest.mark.parametrize("more", MODES.values(), ids=MODES)
def test_generated_tokens_equal_those_with_gloo(tmp_path, more):
    program = HERE.parent / "programs" / "vllm_serve.py"
    fixed = ["--model", tmp_path / "model", "--layers=2", "--tokens=6", "--repeat=1"]
    workers = {"ringtree": "vllm_worker.RingtreeOnlyWorker", "": "vllm_serve.GlooWorker"}
    found = {}
    for plugins, worker in workers.items():
        out = output(plugins, program, *fixed, *more, "--worker-cls", worker)
        lines = [line for line in out.splitlines() if line.startswith("batch ")]
        found[plugins] = [line.split()[-1] for line in lines]
        assert ("communicates over ringtree: " in out) == (plugins == "ringtree")
    assert len(found[""]) == 2 and found["ringtree"] == found[""]
