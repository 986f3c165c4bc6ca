"""Our load test and vLLM's own, on the same server: the same latencies."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.delays import Delays, server
from support.serving import ROOT
from tunewright_workloads.bench import run
from tunewright_workloads.contract.configs import BenchConfig
from tunewright_workloads.gemma import tiny

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
# The console script of the CPU package fails: it asks for a distribution of another name.
SERVE = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="vLLM is not installed (make install-vllm makes .venv-vllm)"
    ),
]


def test_both_tools_measure_the_same_within_five_percent(tmp_path: Path) -> None:
    tiny.write(tmp_path / "model")  # vLLM's tool wants a tokenizer to make its prompts
    with server(Delays(ttft=0.6, itl=0.15)) as slow:
        asked = {"input_tokens": 64, "output_tokens": 8, "requests": 60, "warmup": 2, "rates": (20.0,)}
        (ours,) = run.run(BenchConfig(url=slow.url, model="slow", output="unused", **asked)).points
        options = {
            "backend": "openai", "base-url": slow.url, "model": "slow", "tokenizer": tmp_path / "model",
            "dataset-name": "random", "random-input-len": 64, "random-output-len": 8, "num-prompts": 60,
            "request-rate": 20, "result-dir": tmp_path, "result-filename": "theirs.json",
            "percentile-metrics": "ttft,tpot,itl", "ready-check-timeout-sec": 0,
        }  # fmt: skip
        command = [str(PYTHON), "-c", SERVE, "--save-result", "--ignore-eos"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    assert ours.errors == 0 and theirs["completed"] == 60
    assert ours.itl is not None
    for name, mine in (("ttft", ours.ttft), ("tpot", ours.tpot), ("itl", ours.itl)):
        assert mine.p50 == pytest.approx(theirs[f"median_{name}_ms"], rel=0.05), name
    assert ours.output_tokens == theirs["total_output_tokens"] == 480
