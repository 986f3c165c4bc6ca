"""`report.json`: everything that a comparison of two runs needs, from what the run really did."""

from __future__ import annotations

import hashlib
import statistics
from importlib import metadata
from typing import Any, Literal

from tunewright_workloads.contract import accelerators, models
from tunewright_workloads.contract import report as contract
from tunewright_workloads.gemma import names
from tunewright_workloads.train.metrics import Metrics
from tunewright_workloads.train.prepare import Run

PACKAGES = (
    "tunewright", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "google-tunix", "qwix",
    "tokenizers", "numpy", "torch", "transformers", "trl", "peft", "accelerate",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The packages that decide what a run computes, those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def digests(run: Run) -> tuple[str, str, int, int, int]:
    """(token digest, mask digest, useful, trained, padded) over all batches of the run, in order.

    One epoch's batches of a run are the same however it was interrupted, so they are read again
    rather than remembered.
    """
    tokens, masks = hashlib.sha256(), hashlib.sha256()
    useful = trained = padded = 0
    for step in range(run.steps):
        batch = run.batches.at(step)
        real = batch.segments > 0
        tokens.update(batch.tokens[real].tobytes())
        masks.update(batch.weights[real].astype("u1").tobytes())
        useful, trained = useful + int(real.sum()), trained + batch.trained
        padded += batch.tokens.size
    return tokens.hexdigest(), masks.hexdigest(), useful, trained, padded


def report(
    run: Run, metrics: Metrics, times: dict[str, float], hosts: int, cache: Any,
    program: Literal["jax", "torch"] = "jax",
) -> contract.RunReport:  # fmt: skip
    """The run's record. times: seconds by name (load, compile, checkpoint, evaluation)."""
    c, t, a = run.config, run.config.training, run.config.adapter
    steps = metrics.steps()
    seconds = [line["seconds"] for line in steps]
    token_digest, mask_digest, useful, trained, padded = digests(run)
    adapted = [p for p in names.projections(run.arch) if set(p.targets) & set(a.targets)]
    spec = models.MODELS.get(c.model.name)
    chip = accelerators.ACCELERATORS[c.mesh.accelerator]
    chips = 0
    if chip.kind == "tpu":
        chips = accelerators.slice_of(c.mesh.accelerator, c.mesh.topology).chips
    elif chip.kind == "gpu":
        chips = (c.mesh.fsdp or 1) * (c.mesh.tp or 1)
    base = "bfloat16" if c.compute_dtype == "bfloat16" else "float32"
    quantized = a.quantize_base
    return contract.RunReport(
        job=c.job,
        program=program,
        model=contract.BaseModelRecord(
            name=c.model.name, source=c.model.source, digest=run.base_digest, params=parameters(run),
            params_active=int(spec.params_active) if spec and spec.params_active else None,
        ),
        adapter=contract.AdapterRecord(
            rank=a.rank, alpha=a.alpha, dropout=a.dropout, targets=list(a.targets),
            modules=[w for p in adapted for w in p.weights],
            params=sum(_size(shape) for p in adapted for shape in p.shapes(a.rank)),
        ),
        data=contract.DataRecord(
            digest=run.train.digest, template_digest=run.tokenizer.template_digest, token_digest=token_digest,
            mask_digest=mask_digest, rows=len(run.train), dropped=run.train.dropped, packing=c.dataset.packing,
            max_length=c.dataset.max_length, loss_on=c.dataset.loss_on, tokens_useful=useful,
            tokens_trained=trained, tokens_padded=padded,
        ),
        training=contract.TrainingRecord(
            steps=run.steps, global_batch_size=t.global_batch_size, micro_batch_size=run.micro,
            learning_rate=t.learning_rate, schedule=t.schedule, warmup_steps=t.warmup_steps,
            weight_decay=t.weight_decay, max_grad_norm=t.max_grad_norm, seed=t.seed,
            epochs=round(run.batches.epoch(run.steps), 6),
        ),
        precision=contract.PrecisionRecord(
            base=base if quantized == "none" else quantized, compute=c.compute_dtype, adapter="float32",
            moments="float32",
        ),
        hardware=contract.HardwareRecord(
            type=c.mesh.accelerator, topology=c.mesh.topology, chips=chips, hosts=hosts,
            mode=c.mesh.provisioning, price=chip.quote(c.mesh.provisioning).price,
        ),
        time=contract.TimeRecord(
            total=round(metrics.wall(), 3), steps=round(sum(seconds), 4),
            step_median=round(statistics.median(seconds), 5), cache=cache,
            **{k: round(v, 3) for k, v in times.items()},
        ),
        loss=[contract.LossPoint(step=s["step"], loss=s["loss"], tokens=int(s["tokens"])) for s in steps],
        eval_loss=metrics.eval_loss,
        attempts=metrics.attempts(),
        versions=versions(),
    )  # fmt: skip


def parameters(run: Run) -> int:
    """Text parameters of the base, in elements."""
    return sum(_size(shape) for shape in names.tensors(run.arch).values())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def as_json(record: contract.RunReport) -> str:
    return record.model_dump_json(by_alias=True, indent=2) + "\n"


def summary(record: Any) -> str:
    """One line of a finished run's report."""
    loss = record["loss"][-1]["loss"] if record.get("loss") else float("nan")
    text = f"{record['training']['steps']} steps, final loss {loss:.4f}"
    if record.get("evalLoss") is not None:
        text += f", validation loss {record['evalLoss']:.4f}"
    return text
