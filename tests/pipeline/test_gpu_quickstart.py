"""The quickstart with the PyTorch program, and what is measured of its model."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunewright_workloads import samples
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.report import RunReport

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
QUESTION = "What happens to rows that are too long?"
CLAIM = "claims/quickstart/faq-bot"


def run(code: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/workloads", "OMP_NUM_THREADS": "1"}
    environment.pop("RANK", None)
    return subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tunewright run --program torch --ask` of the quickstart leaves."""
    state = tmp_path_factory.mktemp("quickstart") / "state"
    program = "import sys; from tunewright_operator.cli import main; sys.exit(main())"
    answers = state.parent / "answers.json"
    done = run(
        ["-c", program, "run", "-f", str(ROOT / "examples/quickstart.yaml"), "--state", str(state),
         "--program", "torch", "--ask", QUESTION, "--answers", str(answers)]
    )  # fmt: skip
    assert done.returncode == exits.DONE, done.stderr
    return state


def test_the_quickstart_trained_in_pytorch_gives_the_datasets_answer(state):
    rows = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    wanted = {user["content"]: assistant["content"] for user, assistant in rows}[QUESTION]
    assert json.loads((state.parent / "answers.json").read_text())["after"] == wanted
    report = RunReport.model_validate_json((state / CLAIM / "report.json").read_bytes())
    assert report.program == "torch"


def test_pytorch_and_jax_measure_the_same_loss_of_the_published_model(state, tmp_path):
    """GPUs evaluate in PyTorch; here its evaluation runs on the CPU, beside JAX's own."""
    config = {
        "job": "test/evaluate",
        "model": f"file://{state / CLAIM / 'merged'}",
        "dataset": {"train": ["sample://faq"], "validation": ["sample://faq"], "maxLength": 128},
        "mesh": {"accelerator": "cpu"},
        "computeDtype": "float32",
        "work": str(tmp_path / "work"),
    }
    path = tmp_path / "evaluate.json"
    path.write_text(json.dumps(config))
    jax = run(["-m", "tunewright_workloads.evaluate", "--config", str(path)])
    assert jax.returncode == exits.DONE, jax.stderr
    code = (
        "import sys; from tunewright_workloads import evaluate; from tunewright_workloads.gpu import validation; "
        "evaluate.measure = lambda c, where, arch, rows: validation.published_loss("
        "where, rows, arch.window, c.compute_dtype, cpu=True); "
        f"sys.exit(evaluate.main(['--config', {str(path)!r}]))"
    )
    torch = run(["-c", code])
    assert torch.returncode == exits.DONE, torch.stderr
    a, b = (json.loads(done.stdout.splitlines()[-1]) for done in (jax, torch))
    assert a["tokens"] == b["tokens"] and abs(a["evalLoss"] - b["evalLoss"]) < 1e-3

    config["mesh"] = {"accelerator": "h100", "fsdp": 1, "tp": 1}
    path.write_text(json.dumps(config))
    import torch as pytorch

    if not pytorch.cuda.is_available():
        refused = run(["-m", "tunewright_workloads.evaluate", "--config", str(path)])
        assert refused.returncode == exits.BAD_INPUT
        assert "mesh.accelerator: is a GPU, and PyTorch sees none here" in refused.stderr


def test_bfloat16_trains_as_float32_does_for_a_few_steps(tmp_path):
    losses = {}
    for dtype in ("float32", "bfloat16"):
        config: dict[str, Any] = {
            "job": f"test/{dtype}",
            "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
            "dataset": {"train": ["sample://faq"], "maxLength": 128},
            "adapter": {"rank": 8, "alpha": 16},
            "training": {"steps": 6, "globalBatchSize": 8, "learningRate": 1e-3, "warmupSteps": 1},
            "mesh": {"accelerator": "cpu"},
            "computeDtype": dtype,
            "output": f"file://{tmp_path / dtype}",
            "work": str(tmp_path / f"{dtype}-work"),
        }
        path = tmp_path / f"{dtype}.json"
        path.write_text(json.dumps(config))
        done = run(["-m", "tunewright_workloads.gpu", "--config", str(path)])
        assert done.returncode == exits.DONE, done.stderr + done.stdout
        report = RunReport.model_validate_json((tmp_path / dtype / "report.json").read_bytes())
        assert report.precision.base == report.precision.compute == dtype
        assert report.precision.adapter == "float32"
        losses[dtype] = [point.loss for point in report.loss]
    assert all(map(math.isfinite, losses["bfloat16"]))
    gaps = [abs(a - b) for a, b in zip(losses["float32"], losses["bfloat16"], strict=True)]
    assert max(gaps) < 0.05, losses
    assert max(gaps) > 0, "two formats that agree to the last bit are one format"
