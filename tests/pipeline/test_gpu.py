"""The PyTorch program beside the JAX program, on CPU: the same rows, start, losses and model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tunewright_workloads.compare import honesty
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.lineage import Manifest
from tunewright_workloads.contract.report import RunReport

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
STEPS = 50


def write(where: Path, name: str, **changes: Any) -> Path:
    """A configuration of the tiny model's fine-tuning; `changes` by dotted field."""
    config: dict[str, Any] = {
        "job": f"test/{name}",
        "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
        "dataset": {"train": ["sample://faq"], "maxLength": 128},
        "adapter": {"rank": 16, "alpha": 32},
        "training": {"steps": STEPS, "globalBatchSize": 8, "learningRate": 1e-3, "warmupSteps": 5},
        "mesh": {"accelerator": "cpu"},
        "computeDtype": "float32",
        "checkpointEvery": 25,
        "output": f"file://{where / name}",
        "work": str(where / f"{name}-work"),
    }
    for dotted, value in changes.items():
        inner = config
        *parents, last = dotted.split("__")
        for part in parents:
            inner = inner[part]
        inner[last] = value
    path = where / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def start(module: str, path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'workloads'}", "OMP_NUM_THREADS": "1"}
    environment.pop("RANK", None)
    command = [sys.executable, "-m", f"tunewright_workloads.{module}", "--config", str(path)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(module: str, path: Path) -> str:
    process = start(module, path)
    out, _ = process.communicate(timeout=500)
    assert process.returncode == exits.DONE, out
    return out


def report(where: Path) -> RunReport:
    return RunReport.model_validate_json((where / "report.json").read_bytes())


def losses(where: Path) -> list[float]:
    return [point.loss for point in report(where).loss]


def gap(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def torch_run(folder: Path) -> Path:
    told = str(folder / "torch-progress.json")
    run("gpu", write(folder, "torch", dataset__validation=["sample://faq"], progress=told))
    return folder / "torch"


@pytest.fixture(scope="module")
def jax_run(folder: Path) -> Path:
    told = str(folder / "jax-progress.json")
    run("train", write(folder, "jax", dataset__validation=["sample://faq"], progress=told))
    return folder / "jax"


def test_both_programs_have_the_same_losses_for_fifty_steps(torch_run, jax_run):
    assert len(losses(jax_run)) == STEPS
    assert gap(losses(torch_run), losses(jax_run)) < 1e-3


def test_both_programs_measure_the_same_validation_loss(torch_run, jax_run):
    a, b = report(torch_run).eval_loss, report(jax_run).eval_loss
    assert a is not None and b is not None and abs(a - b) < 1e-3


def test_the_comparison_of_both_finds_nothing_to_refuse(torch_run, jax_run):
    assert [f for f in honesty.runs(report(jax_run), report(torch_run)) if f.severity == "refuse"] == []


def test_both_adapters_merge_to_models_with_the_same_greedy_tokens(torch_run, jax_run, folder):
    import torch
    from transformers import AutoTokenizer, Gemma4ForCausalLM

    from tunewright_workloads.gpu import base

    answers = []
    for name, source in (("jax", jax_run), ("torch", torch_run / "adapter")):
        config = {
            "job": f"test/{name}",
            "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
            "adapter": f"file://{source}",
            "output": f"file://{folder / f'{name}-merged'}",
            "dtype": "float32",
            "work": str(folder / f"{name}-merge"),
        }
        path = folder / f"{name}-merge.json"
        path.write_text(json.dumps(config))
        run("merge", path)
        merged = folder / f"{name}-merged"
        told = json.loads((folder / f"{name}-progress.json").read_text())["artifacts"]
        manifest = Manifest.model_validate_json((merged / "tunewright.json").read_bytes())
        assert told["adapter"] == manifest.adapter.digest
        model = base.load(merged, torch.float32)
        assert isinstance(model, Gemma4ForCausalLM)
        words = AutoTokenizer.from_pretrained(merged)
        prompt = words.apply_chat_template(
            [{"role": "user", "content": "What is Tunewright?"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        made = model.generate(**prompt, max_new_tokens=24, do_sample=False)
        answers.append(made[0].tolist())
    assert answers[0] == answers[1]


def test_two_processes_with_fsdp_compute_what_one_does(torch_run, folder):
    run("gpu", write(folder, "fsdp", mesh__fsdp=2, dataset__validation=["sample://faq"]))
    assert abs((report(folder / "fsdp").eval_loss or 0) - (report(torch_run).eval_loss or 1)) < 1e-4
    assert gap(losses(folder / "fsdp"), losses(torch_run)) < 1e-4


def test_a_terminated_run_saves_ends_with_its_code_and_goes_on_with_the_same_losses(torch_run, folder):
    path = write(folder, "stopped", dataset__validation=["sample://faq"])
    process = start("gpu", path)
    metrics = folder / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and '"step"' in metrics.read_text().replace('"event": "start", "step"', "")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    if process.returncode == exits.DONE:
        pytest.fail("the run ended before the signal: raise STEPS")
    assert process.returncode == exits.PREEMPTED, out
    kept = [int(p.name) for p in (folder / "stopped" / "checkpoints").iterdir()]
    assert kept and max(kept) < STEPS
    assert "resuming after step" in run("gpu", path)
    assert gap(losses(folder / "stopped"), losses(torch_run)) < 1e-5
    assert report(folder / "stopped").attempts == 2


def test_a_second_run_of_a_finished_job_says_so(torch_run, folder):
    assert "done before" in run("gpu", folder / "torch.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"adapter__quantizeBase": "int8"}, "adapter.quantizeBase: is not done by the PyTorch program"),
        ({"training__microBatchSize": 3}, "training.microBatchSize"),
        ({"training__globalBatchSize": 3, "mesh__fsdp": 2}, "training.globalBatchSize"),
        ({"output": "gs://bucket/out"}, "writes checkpoints to a mounted path"),
        ({"mesh__tp": 2}, "mesh.tp: the PyTorch program shards with FSDP alone"),
    ],
)
def test_what_cannot_work_ends_as_bad_input(folder, changes, says):
    process = start("gpu", write(folder, f"bad{abs(hash(says))}", **changes))
    out, _ = process.communicate(timeout=300)
    assert process.returncode == exits.BAD_INPUT, out
    assert says in out
    assert "Traceback" not in out
