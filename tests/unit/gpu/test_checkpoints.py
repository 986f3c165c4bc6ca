"""Which checkpoints of the PyTorch program stay."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tunewright_workloads.gpu import checkpoints


class State:
    """The part of the trainer's state that a checkpoint needs."""

    def __init__(self, step: int) -> None:
        self.global_step = step

    def save_to_json(self, path: str) -> None:
        Path(path).write_text("{}")


def saved(root: Path, losses: list[float | None], keep: int) -> set[int]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for i, loss in enumerate(losses):
        checkpoints.save(root, model, optimizer, State(10 * (i + 1)), keep, True, loss)
    return {int(p.name) for p in root.iterdir()}


def test_the_newest_are_kept_and_the_one_of_the_least_validation_loss(tmp_path):
    assert saved(tmp_path, [2.0, 1.0, 1.5, 1.6, 1.7], keep=2) == {20, 40, 50}
    assert checkpoints.best(tmp_path) == 20
    assert checkpoints.evaluated(tmp_path / "50") == 1.7


def test_without_validation_rows_the_newest_are_kept(tmp_path):
    assert saved(tmp_path, [None, None, None], keep=2) == {20, 30}
    assert checkpoints.best(tmp_path) is None
