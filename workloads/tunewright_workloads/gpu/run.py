"""One training run in PyTorch: load, resume, step, save, stop when asked, export, report."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from transformers import AutoTokenizer

from tunewright_workloads.contract import exits
from tunewright_workloads.contract.progress import ProgressFile
from tunewright_workloads.gpu import adapter, base, checkpoints
from tunewright_workloads.gpu import trainer as trainers
from tunewright_workloads.train import output as outputs
from tunewright_workloads.train import published, record
from tunewright_workloads.train.metrics import Metrics, say
from tunewright_workloads.train.prepare import Run
from tunewright_workloads.train.stop import Stop


def train(run: Run, output: outputs.Output, stop: Stop) -> int:
    """Runs to the end, or to the step at which a signal arrives. Returns the exit code."""
    config, rank, world = run.config, int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    chief, cpu, began = rank == 0, config.mesh.accelerator == "cpu", time.monotonic()
    metrics = Metrics(output, ProgressFile(config.progress if chief else None), run.steps)
    dtype = torch.bfloat16 if config.compute_dtype == "bfloat16" else torch.float32
    torch.manual_seed(config.training.seed)
    metrics.message("loading the base model")
    where = output.root / outputs.CHECKPOINTS
    args = trainers.arguments(run, where, world, cpu)
    model = adapter.apply(base.load(run.model, dtype), run.arch, config.adapter, config.training.seed)
    callback = trainers.Callback(run, metrics, stop, chief)
    trainer = trainers.Trainer(run, model, args, AutoTokenizer.from_pretrained(run.model), callback)
    if chief:
        checkpoints.sweep(where)
    trainer.accelerator.wait_for_everyone()
    there = checkpoints.newest(where)
    done = int(there.name) if there else 0
    if chief:
        metrics.start(done)
        metrics.checkpoint = done or None
        metrics.eval_loss = checkpoints.evaluated(there) if there else None
        say(
            f"resuming after step {done}"
            if done
            else f"{world} process(es), base and compute {config.compute_dtype}, adapter float32"
        )
    if done:
        stop.arm()
    load = time.monotonic() - began
    if done < run.steps:
        trainer.train(resume_from_checkpoint=str(there) if there else None)
    step = trainer.state.global_step if done < run.steps else done
    if step < run.steps:
        if chief:
            say(f"{stop.asked}: the checkpoint of step {step} is saved")
            metrics.message(f"stopped by {stop.asked}; the checkpoint of step {step} is saved")
            metrics.close()
        return exits.PREEMPTED
    if done == run.steps:
        checkpoints.load_adapter(where / str(done), trainer.model)
    state = checkpoints.adapter(trainer.model)
    if chief:
        finish(
            run,
            output,
            metrics,
            state,
            {"load": load, "compile": 0.0, "checkpoint": callback.saving, "evaluation": callback.validating},
        )
    trainer.accelerator.wait_for_everyone()
    return exits.DONE


def finish(
    run: Run, output: outputs.Output, metrics: Metrics, state: dict[str, Any], times: dict[str, float]
) -> None:
    """Exports the adapter, then writes the report, which marks the run as finished."""
    config = run.config
    adapter.export(state, config.adapter, config.model.source, output.root / "adapter")
    metrics.close()
    made = record.report(run, metrics, times, 1, "none", program="torch")
    output.write(outputs.REPORT, record.as_json(made))
    text = f"done: {record.summary(made.model_dump(by_alias=True))}"
    best = checkpoints.best(output.root / outputs.CHECKPOINTS)
    if best is not None and best != run.steps:
        text += f"; the least validation loss was at step {best}, whose checkpoint is kept"
    metrics.message(text, done=True, artifacts=published.digests(output, "torch", run.train.digest))
    say(text)
