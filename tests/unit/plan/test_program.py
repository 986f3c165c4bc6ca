"""Which of the two training programs a plan runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunewright_operator import api, plan
from tunewright_operator.cli import options
from tunewright_operator.plan import Settings

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
H100 = Path(__file__).parents[3] / "examples" / "paper" / "train-h100.yaml"


def made(path: Path, program: str):
    job = next(r for r in options.load(str(path), "default", here=False) if isinstance(r, api.FineTuneJob))
    return plan.job(job, Settings(program=program))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "program", "module"),
    [
        (QUICKSTART, "auto", "train"),
        (QUICKSTART, "torch", "gpu"),
        (H100, "auto", "gpu"),
        (H100, "torch", "gpu"),
    ],
)
def test_gpus_train_in_pytorch_and_a_cpu_where_asked(path, program, module):
    train, merge = made(path, program).stages[:2]
    assert train.container["command"][2] == f"tunewright_workloads.{module}"
    assert merge.config.adapter.endswith("/adapter") == (module == "gpu")
    assert merge.container["command"][2] == "tunewright_workloads.merge"


def test_every_gpu_gets_a_process_and_its_share():
    train = made(H100, "auto").stages[0]
    config = json.loads(train.config.text())
    assert config["mesh"]["fsdp"] == 2
    assert str(train.container["resources"]["limits"]["nvidia.com/gpu"]) == "2"
