"""Datasets of planned jobs, checked by the workload that will train on them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tunewright_operator.plan import Plan
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import TrainConfig
from tunewright_workloads.contract.faults import UserError

READABLE = ("file://", "sample://")


def check(made: list[tuple[Any, Plan]]) -> None:
    """Reads the datasets that are on this machine. Raises UserError with what is wrong in them.

    What cannot be read from here is said on stderr: a check that did not happen is no check.
    """
    errors = []
    for resource, plan in made:
        for stage in plan.stages:
            if stage.name == "train" and isinstance(stage.config, TrainConfig):
                where = f"{resource.kind}/{resource.metadata.name}"
                found = _one(stage.config, where)
                if found:
                    errors.append(f"{where}: {found}")
    if errors:
        raise UserError("\n".join(errors))


def _one(config: TrainConfig, where: str) -> str | None:
    """The message about a dataset that cannot be trained on, or None."""
    files = [*config.dataset.train, *config.dataset.validation]
    away = [uri for uri in files if not uri.startswith(READABLE) or uri.startswith("file:///mnt/claims/")]
    if not config.model.source.startswith(READABLE) or config.model.source.startswith("file:///mnt/claims/"):
        away.append(f"{config.model.source} (the tokenizer)")
    if away:
        click.echo(f"{where}: dataset not checked: {', '.join(away)} cannot be read from here", err=True)
        return None
    with tempfile.TemporaryDirectory(prefix="tunewright-plan-") as scratch:
        path = Path(scratch) / "train.json"
        path.write_text(config.model_copy(update={"work": scratch}).text(), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "tunewright_workloads.data", "--config", str(path)],
            capture_output=True,
            text=True,
        )
    if done.returncode == exits.DONE:
        for line in done.stdout.strip().splitlines():
            click.echo(f"{where}: {line}", err=True)
        return None
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode == exits.BAD_INPUT:
        return said
    raise RuntimeError(f"the dataset check ended with exit code {done.returncode}:\n{said}")
