"""Two processes with four emulated devices each train as one process with one device does."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.rows import assistant, chat, user, write
from support.training import Job
from tunewright_workloads.contract import exits

pytestmark = pytest.mark.pipeline

STEPS = 4


def settings(directory: Path, **more: Any) -> dict[str, Any]:
    validation = write(directory / "val.jsonl", chat(user("What is it?"), assistant("An operator.")))
    return {
        "training": {"steps": STEPS, "globalBatchSize": 8},
        "dataset": {"validation": [f"file://{validation}"]},
        "checkpointEvery": 2,
        **more,
    }


def together(job: Job, cache: Path, code: str | None = None) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        job.child(
            code,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
            JAX_COMPILATION_CACHE_DIR=str(cache),
            XLA_FLAGS="--xla_force_host_platform_device_count=4",
        )
        for number in range(2)
    ]


def finish(processes: list[subprocess.Popen[str]], code: int) -> list[str]:
    texts = []
    try:
        for process in processes:
            texts.append(process.communicate(timeout=400)[0])
            assert process.returncode == code, "\n".join(texts)
    finally:
        for process in processes:
            process.kill()
    return texts


def test_two_processes_of_four_devices_get_the_losses_of_one(tmp_path: Path) -> None:
    alone = Job(tmp_path / "alone", **settings(tmp_path))
    assert alone.here() == exits.DONE
    # fsdp spans both processes; tp = 1, as the tiny model has a single global kv head.
    job = Job(
        tmp_path / "two", **settings(tmp_path), mesh={"accelerator": "cpu", "hosts": 2, "fsdp": 8, "tp": 1}
    )
    stopping = """
import os, signal
from tunewright_workloads.train.metrics import Metrics
note = Metrics.step
def asked(self, step, *args):
    note(self, step, *args)
    if step == 2 and os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)  # one host of two is asked to go
Metrics.step = asked
"""
    first = finish(together(job, tmp_path / "cache", stopping), exits.PREEMPTED)
    (saved,) = (step for step in job.committed() if step == max(job.committed()))
    assert saved < STEPS
    assert "stopped" in job.progress()["message"]
    second = finish(together(job, tmp_path / "cache"), exits.DONE)
    assert f"resuming after step {saved}" in second[0]
    assert "fsdp=8 tp=1" in first[0]
    np.testing.assert_allclose(list(job.losses().values()), list(alone.losses().values()), rtol=2e-5)
    assert job.report()["evalLoss"] == pytest.approx(alone.report()["evalLoss"], rel=1e-4)
    assert job.report()["hardware"]["hosts"] == 2
    a, b = alone.adapter(STEPS), job.adapter(STEPS)
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_allclose(b[key], value, atol=1e-3)
    assert job.report()["data"]["tokenDigest"] == alone.report()["data"]["tokenDigest"]


def test_a_job_with_too_few_processes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(tmp_path, mesh={"accelerator": "cpu", "hosts": 2})
    process = job.child(JAX_COORDINATOR_ADDRESS="127.0.0.1:1", JAX_NUM_PROCESSES="1", JAX_PROCESS_ID="0")
    text, _ = process.communicate(timeout=120)
    assert process.returncode == exits.BAD_INPUT, text
    assert "must be the number of processes, 1 (got 2)" in text
