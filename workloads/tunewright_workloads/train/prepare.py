"""Everything a run needs that can be known without JAX: files, rows, batches, steps, identity.

Whatever is wrong with the user's input is found here, before a device is touched.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tunewright_workloads import storage
from tunewright_workloads.contract import meshes
from tunewright_workloads.contract.configs import TrainConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.data import dataset, tokenizer
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.gemma import architecture
from tunewright_workloads.gemma.architecture import Architecture


@dataclass(frozen=True)
class Run:
    """A checked configuration with its inputs at hand.

    identity: what makes the run the same work when it is started again, by the configuration's
    field names. Where it runs (mesh, micro batch) and how often it saves are not part of it.
    """

    config: TrainConfig
    model: Path
    arch: Architecture
    tokenizer: tokenizer.Tokenizer
    base_digest: str
    train: dataset.Dataset
    validation: dataset.Dataset | None
    batches: Batches
    validation_batches: Batches | None
    steps: int
    identity: dict[str, Any]

    @cached_property
    def digest(self) -> str:
        """sha256 of the identity."""
        return digest(self.identity)

    @property
    def micro(self) -> int:
        """Rows computed at a time."""
        return self.config.training.micro_batch_size or self.config.training.global_batch_size


def digest(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Sources:
    """Where the inputs are on this machine, and what they are."""

    model: Path
    base_digest: str
    train: list[dataset.Source]
    validation: list[dataset.Source]
    identity: dict[str, Any]


def sources(config: TrainConfig) -> Sources:
    """Finds the inputs and identifies the run, without reading rows. Raises UserError with all faults."""
    faults: list[Fault] = []
    work = Path(config.work)
    _check(config)
    model, base = Path(), ""
    train: list[dataset.Source] = []
    validation: list[dataset.Source] = []
    try:
        model = storage.localize(
            config.model.source, work, revision=config.model.revision, place="model.source"
        )
        base = storage.fingerprint(model)
    except UserError as error:
        faults += error.faults
    for place in ("train", "validation"):
        try:
            found = dataset.locate(getattr(config.dataset, place), work, f"dataset.{place}")
            train, validation = (found, validation) if place == "train" else (train, found)
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(faults)
    return Sources(model, base, train, validation, _identity(config, model, base, train))


def _check(config: TrainConfig) -> None:
    t, faults = config.training, meshes.rows(config.mesh.accelerator, config.dataset.max_length)
    if t.micro_batch_size and t.global_batch_size % t.micro_batch_size:
        faults.append(
            Fault(
                "training.microBatchSize",
                f"must divide training.globalBatchSize, {t.global_batch_size}",
                str(t.micro_batch_size),
            )
        )
    if faults:
        raise UserError(faults)


def _identity(config: TrainConfig, model: Path, base: str, train: list[dataset.Source]) -> dict[str, Any]:
    from tunewright_workloads.data import files

    text = hashlib.sha256()
    for path in tokenizer.files(model):
        text.update(path.name.encode() + path.read_bytes())
    data = config.dataset.model_dump(mode="json", by_alias=True, exclude={"train", "validation"})
    schedule = config.training.model_dump(mode="json", by_alias=True, exclude={"micro_batch_size", "remat"})
    adapter = config.adapter.model_dump(mode="json", by_alias=True)
    return {
        "model (weights)": base,
        "model (tokenizer and chat template)": text.hexdigest(),
        "dataset.train (content)": files.digest([s.path for s in train]),
        **{f"dataset.{k}": v for k, v in data.items()},
        **{f"adapter.{k}": v for k, v in adapter.items()},
        **{f"training.{k}": v for k, v in schedule.items()},
        "computeDtype": config.compute_dtype,
    }


def prepare(config: TrainConfig, found: Sources) -> Run:
    """Reads and checks every row. Raises UserError with all faults of model and data."""
    faults: list[Fault] = []
    arch = architecture.read(found.model)
    words = tokenizer.load(found.model)
    if config.dataset.max_length > arch.max_positions:
        faults.append(
            Fault(
                "dataset.maxLength",
                f"must be at most the model's context, {arch.max_positions}",
                str(config.dataset.max_length),
            )
        )
    built: dict[str, dataset.Dataset | None] = {"train": None, "validation": None}
    title = "The dataset cannot be trained on"
    for name, files in (("train", found.train), ("validation", found.validation)):
        if files:
            try:
                built[name] = dataset.build(files, words, config.dataset, what=f"dataset.{name}")
            except UserError as error:
                faults += error.faults
                title = error.title or title
    if faults:
        raise UserError(faults, title if len(faults) > 1 else None)
    train, validation = built["train"], built["validation"]
    assert train is not None
    top = max(int(train.tokens.max()), int(validation.tokens.max()) if validation else 0)
    if top >= arch.vocab:
        raise UserError(
            Fault(
                str(found.model),
                f"its tokenizer makes token {top}, its vocabulary ends at {arch.vocab - 1}",
                None,
                "Tokenizer and weights do not belong together.",
            )
        )
    t, d = config.training, config.dataset
    lanes = meshes.lanes(config.mesh.accelerator)
    batches = Batches(
        train, t.global_batch_size, d.max_length, d.packing, t.seed, pad_id=words.pad_id, lanes=lanes
    )
    steps = t.steps if t.steps is not None else batches.steps(t.epochs or 1)
    beside = None
    if validation is not None:
        beside = Batches(
            validation,
            t.global_batch_size,
            d.max_length,
            d.packing,
            t.seed,
            shuffle=False,
            pad_id=words.pad_id,
            lanes=lanes,
        )
    return Run(
        config,
        found.model,
        arch,
        words,
        found.base_digest,
        train,
        validation,
        batches,
        beside,
        steps,
        found.identity,
    )
