"""Datasets of planned jobs, checked by the workload that will train on them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tunewright_operator.plan import Plan
from tunewright_operator.plan.volumes import written
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import TrainConfig
from tunewright_workloads.contract.faults import Fault, UserError

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
        raise UserError([Fault(error, "") for error in errors], title="Datasets that cannot be trained on")


def _one(config: TrainConfig, where: str) -> str | None:
    """The message about a dataset that cannot be trained on, or None."""
    data, model = config.dataset, config.model
    away = [written(uri) for uri in (*data.train, *data.validation) if not _here(uri)]
    if not _here(model.source):
        away.append(f"{written(model.source)} (for its tokenizer)")
    if away:
        click.echo(f"{where}: dataset not checked: {', '.join(away)} cannot be read from here", err=True)
        return None
    with tempfile.TemporaryDirectory(prefix="tunewright-plan-") as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "tunewright_workloads.data", *arguments(config, Path(scratch))],
            capture_output=True,
            text=True,
        )
    if done.returncode == exits.DONE:
        click.echo(f"{where}: dataset: {_summary(json.loads(done.stdout))}", err=True)
        return None
    if done.returncode == exits.BAD_INPUT:
        return done.stderr.strip() or done.stdout.strip()
    said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    click.echo(f"{where}: dataset not checked: {said[0]}", err=True)
    return None


def _here(uri: str) -> bool:
    return written(uri).startswith(READABLE)


def arguments(config: TrainConfig, work: Path) -> list[str]:
    """The command line of the dataset check that reads what training would read."""
    data, schedule, source = config.dataset, config.training, config.model.source
    found = [*data.train, "--json", "--work", str(work)]
    if source.startswith("file://"):
        found += ["--tokenizer", source.removeprefix("file://")]
    else:
        found += ["--model", config.model.name]
    found += ["--format", data.format, "--max-length", str(data.max_length), "--overlong", data.overlong]
    found += [
        "--loss-on",
        data.loss_on,
        "--batch",
        str(schedule.global_batch_size),
        "--seed",
        str(schedule.seed),
    ]
    found += ["--steps", str(schedule.steps)] if schedule.steps else ["--epochs", str(schedule.epochs)]
    if not data.packing:
        found.append("--no-packing")
    if data.validation:
        found += ["--validation", *data.validation]
    return found


def _summary(report: dict[str, Any]) -> str:
    """One line of the report, and its notes."""
    rows, steps = report["rows"], report["steps"]
    dropped = sum(rows["dropped"].values())
    text = (
        f"{rows['kept']} rows"
        + (f" ({dropped} dropped)" if dropped else "")
        + f", {report['tokens']} tokens, "
        f"{report['trainedTokens']} trained on, longest {report['lengths']['max']}; "
        f"{steps['total']} steps, {steps['epochs']:g} epochs"
    )
    return "; ".join([text, *map(str, report.get("notes", []))])
