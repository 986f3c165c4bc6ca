"""What a dataset is, in numbers, before anything is paid for: as text and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunewright_workloads.contract.configs import DatasetConfig
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.data.dataset import DROPS, Dataset

_BAR = 32


def describe(
    train: Dataset,
    validation: Dataset | None,
    config: DatasetConfig,
    batches: Batches,
    *,
    epochs: float | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """The report. Lengths and counts are in tokens, shares between 0 and 1."""
    lengths = train.lengths
    total = steps if steps is not None else batches.steps(epochs or 1)
    report: dict[str, Any] = {
        "files": [s.name for s in train.sources],
        "digest": train.digest,
        "rows": {"read": train.read, "kept": len(train), "dropped": train.dropped},
        "formats": train.formats,
        "tokens": int(lengths.sum()),
        "trainedTokens": train.trained,
        "lengths": {
            "mean": round(float(lengths.mean()), 1),
            **{f"p{q}": int(np.percentile(lengths, q)) for q in (50, 90, 99)},
            "max": int(lengths.max()),
            "histogram": histogram(lengths),
        },
        "batch": {
            "rows": batches.batch_size,
            "length": batches.length,
            "packing": config.packing,
            "rowsPerEpoch": len(batches.bins(0)),
            "efficiency": round(batches.efficiency(), 4),
        },
        "steps": {"perEpoch": batches.steps_in(0), "total": total, "epochs": round(batches.epoch(total), 3)},
        "duplicates": train.duplicates,
        "notes": notes(train, validation, config, batches),
    }
    if validation is not None:
        report["validation"] = {
            "files": [s.name for s in validation.sources],
            "rows": {"read": validation.read, "kept": len(validation), "dropped": validation.dropped},
            "tokens": int(validation.lengths.sum()),
            "trainedTokens": validation.trained,
            "alsoInTrain": overlap(train, validation),
        }
    return report


def overlap(train: Dataset, validation: Dataset) -> int:
    """Validation rows that stand in the training data too."""
    known = set(train.keys)
    return sum(key in known for key in validation.keys)


def histogram(lengths: np.ndarray, bars: int = 10) -> list[dict[str, int]]:
    """Rows by length, in about so many steps of a round number of tokens, from shortest to longest."""
    least = int(lengths.min()) - 1
    width = max(1, -(-(int(lengths.max()) - least) // bars))
    magnitude = 10 ** (len(str(width)) - 1)
    width = -(-width // magnitude) * magnitude
    numbers = (lengths - 1) // width
    first = least // width
    counts = np.bincount(numbers - first)
    return [{"upTo": (first + i + 1) * width, "rows": int(c)} for i, c in enumerate(counts)]


def notes(train: Dataset, validation: Dataset | None, config: DatasetConfig, batches: Batches) -> list[str]:
    """What works but may not be meant, most telling first."""
    found = []
    dropped = sum(train.dropped.values())
    if dropped:
        reasons = ", ".join(f"{n} {DROPS[k]}" for k, n in train.dropped.items())
        found.append(f"{dropped} of {train.read} rows are dropped: {reasons}")
        if train.dropped.get("overlong") or train.dropped.get("answerTruncated"):
            found.append(f"dataset.maxLength ({config.max_length}) is the lever for rows that are too long")
    for text, count in train.notes.items():
        found.append(f"{_rows(count)}: {text}")
    if train.duplicates:
        found.append(f"{_rows(train.duplicates)} being an exact copy of an earlier one")
    if validation is not None and (both := overlap(train, validation)):
        found.append(
            f"{_rows(both)} of the validation data in the training data too: the loss there flatters"
        )
    if len(batches.bins(0)) < batches.batch_size:
        kind = "packed rows" if config.packing else "rows"
        found.append(
            f"one epoch is {len(batches.bins(0))} {kind}, fewer than training.globalBatchSize "
            f"({batches.batch_size}): every step is one whole epoch, filled up with empty rows"
        )
    if len(train.formats) > 1:
        found.append(
            "the rows have different formats: " + ", ".join(f"{v} {k}" for k, v in train.formats.items())
        )
    if "text" in train.formats and config.loss_on != "all":
        found.append("rows of the format text are trained on as a whole")
    return found


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def text(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    rows, lengths, batch, steps = report["rows"], report["lengths"], report["batch"], report["steps"]
    most = max(b["rows"] for b in lengths["histogram"])
    kind = "packed" if batch["packing"] else "padded"
    width = len(str(lengths["histogram"][-1]["upTo"]))
    lines = [
        f"rows      {rows['kept']} of {rows['read']} from {len(report['files'])} file(s)",
        f"tokens    {report['tokens']:,} a pass, {report['trainedTokens']:,} of them trained",
        f"lengths   mean {lengths['mean']}, "
        + ", ".join(f"p{q} {lengths[f'p{q}']}" for q in (50, 90, 99))
        + f", longest {lengths['max']}",
        *(
            f"          {'up to':>6} {b['upTo']:>{width}} {'█' * -(-_BAR * b['rows'] // most)} {b['rows']}"
            for b in lengths["histogram"]
        ),
        f"batch     {batch['rows']} rows of {batch['length']} tokens, {kind}: {batch['efficiency']:.1%} useful",
        f"steps     {steps['total']} ({steps['perEpoch']} an epoch, {steps['epochs']} epochs)",
    ]
    if "validation" in report:
        v = report["validation"]
        lines.append(
            f"validate  {v['rows']['kept']} rows, {v['tokens']:,} tokens, {v['trainedTokens']:,} with loss"
        )
    return "\n".join([*lines, *(f"note      {note}" for note in report["notes"])])
