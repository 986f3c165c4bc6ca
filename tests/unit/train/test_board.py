"""What a run shows to Prometheus, TensorBoard and people."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.train import board


def line(step: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "step", "step": step, "epoch": step / 4, "loss": 2.0 / step, "gradNorm": 1.5, "learningRate": 1e-3,
        "tokens": 30.0, "useful": 90, "seconds": 0.5, **more,
    }  # fmt: skip


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        row.split("{")[0].removeprefix("tunewright_train_"): float(row.rsplit(" ", 1)[1])
        for row in text.splitlines()
        if row.startswith("tunewright_train_")
    }


def test_prometheus_shows_the_newest_step() -> None:
    watch = board.Prometheus(0, "ns/a", padded=100, flops=4e9, peak=1e12, memory=lambda: 123)
    try:
        watch({"event": "start", "step": 0})
        watch(line(1))
        watch(line(2))
        watch({"event": "evaluation", "step": 2, "evalLoss": 0.75})
        found = scrape(watch.port)
    finally:
        watch.close()
    assert found == {
        "loss": 1.0, "gradient_norm": 1.5, "learning_rate": 1e-3, "step": 2.0, "epoch": 0.5, "step_seconds": 0.5,
        "tokens_per_second": 180.0, "useful_share": 0.9, "mfu": pytest.approx(180 * 4e9 / 1e12), "memory_bytes": 123.0,
        "validation_loss": 0.75,
    }  # fmt: skip


def test_what_is_not_known_is_not_shown() -> None:
    watch = board.Prometheus(0, "ns/a", padded=100, flops=4e9, peak=0.0, memory=lambda: None)
    try:
        watch(line(1))
        found = scrape(watch.port)
    finally:
        watch.close()
    assert "mfu" not in found and "memory_bytes" not in found


def test_a_port_that_is_taken_is_said() -> None:
    first = board.Prometheus(0, "ns/a", padded=1, flops=1, peak=0, memory=lambda: None)
    try:
        with pytest.raises(UserError, match="metricsPort"):
            board.Prometheus(first.port, "ns/a", padded=1, flops=1, peak=0, memory=lambda: None)
    finally:
        first.close()


def test_tensorboard_gets_every_value_with_its_step(tmp_path: Path) -> None:
    from tensorboardX.proto import event_pb2

    writer = board.TensorBoard(tmp_path)
    for step in (1, 2):
        writer(line(step))
    writer({"event": "evaluation", "step": 2, "evalLoss": 0.5})
    writer.close()
    (file,) = tmp_path.iterdir()
    found, data = {}, file.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
        data = data[16 + size :]
    assert found["train/loss", 1] == 2.0 and found["train/loss", 2] == 1.0
    assert found["train/validation_loss", 2] == 0.5
    assert found["train/learning_rate", 2] == pytest.approx(1e-3)


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    lines = [line(1), line(2), {"event": "evaluation", "step": 2, "evalLoss": 0.5}]
    board.draw(lines, tmp_path / "curve.png", "ns/a")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1
