"""Data and output in a bucket: a pod that is killed is continued by another with an empty disk."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import gcs
from support.training import Job
from tunewright_workloads import samples, storage
from tunewright_workloads.contract import exits

pytestmark = pytest.mark.pipeline

RUN = "gs://bucket/runs/faq"

KILL = """
import os, time
from tunewright_workloads.train.metrics import Metrics
note = Metrics.step
def killing(self, step, *args):
    note(self, step, *args)
    if step == 5:
        while not self.output.started():
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
Metrics.step = killing
"""


@pytest.fixture
def cloud() -> Iterator[dict[str, str]]:
    with gcs.server() as url, pytest.MonkeyPatch.context() as patch:
        variables = gcs.environment(url)
        for name, value in variables.items():
            patch.setenv(name, value)
        storage.store("gs://bucket/data").put("train.jsonl", samples.path("faq").read_bytes())
        yield variables


def test_a_killed_run_is_continued_from_the_bucket_by_a_fresh_machine(
    cloud: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = {"output": RUN, "dataset": {"train": ["gs://bucket/data/train.jsonl"]}}
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    whole = Job(tmp_path / "whole")
    killed = Job(tmp_path / "first", **there).child(KILL, **cache, **cloud)
    text, _ = killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL, text
    second = Job(tmp_path / "second", **there)
    again = second.child(**cache, **cloud)
    text, _ = again.communicate(timeout=300)
    assert again.returncode == exits.DONE, text
    assert "resuming after step" in text
    assert whole.here() == exits.DONE
    bucket = storage.store(RUN)
    report = json.loads(bucket.get("report.json"))
    assert {p["step"]: p["loss"] for p in report["loss"]} == whole.losses()
    assert report["attempts"] == 2
    names = {entry.name for entry in bucket.entries()}
    assert {"run.json", "metrics.jsonl", "learning-curve.png"} <= names
    assert any(name.startswith("tensorboard/") for name in names)
    assert {name.split("/")[1] for name in names if name.startswith("checkpoints/")} >= {"3", "6", "9"}
    capfd.readouterr()
    assert Job(tmp_path / "third", **there).here() == exits.DONE
    assert "done before" in capfd.readouterr().out
    assert Job(tmp_path / "fourth", **there, training={"seed": 1}).here() == exits.BAD_INPUT
    assert "training.seed: was 42" in capfd.readouterr().err
