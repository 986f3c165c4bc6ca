"""Does a training step fit, by arithmetic: the mesh, what a device holds, what the backward pass keeps. No JAX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright_workloads.contract import accelerators, meshes, models, uris
from tunewright_workloads.contract.configs import LANES, PreflightConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.gemma import architecture
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.preflight import shapes
from tunewright_workloads.train import mesh, remat

GIB = 2**30
KEPT: dict[str, tuple[str, ...]] = {"none": remat.ALL, "block": ("o", "down"), "decoder": ()}


@dataclass(frozen=True)
class Checked:
    """What was found. Bytes are of one device; have is 0 where the memory is not ours to know (cpu).

    rows: of a micro batch on all devices; length: tokens a row.
    """

    arch: Architecture
    devices: int
    fsdp: int
    tp: int
    rows: int
    length: int
    kept: tuple[str, ...]
    resident: float
    temporaries: float
    have: float

    @property
    def fits(self) -> bool:
        return not self.have or self.resident + self.temporaries <= self.have

    def record(self) -> dict[str, Any]:
        """For the result, camelCase, sizes in GiB."""
        return {
            "mesh": {"devices": self.devices, "fsdp": self.fsdp, "tp": self.tp},
            "rows": self.rows,
            "length": self.length,
            "kept": list(self.kept),
            "residentGib": round(self.resident / GIB, 2),
            "temporariesGib": round(self.temporaries / GIB, 2),
            "deviceGib": round(self.have / GIB, 2) or None,
            "fits": self.fits,
        }

    def refuse(self) -> None:
        """Raises UserError with the numbers when it does not fit."""
        if self.fits:
            return
        rest = ["a larger mesh.topology"]
        if self.length > LANES:
            rest.insert(0, "a smaller dataset.maxLength")
        if self.rows > self.fsdp:
            rest.insert(
                0, f"training.microBatchSize: {max(self.fsdp, self.rows // 2 // self.fsdp * self.fsdp)}"
            )
        raise UserError(
            Fault(
                "training",
                f"does not fit: {self.resident / GIB:.1f} GiB of base, adapter and optimizer and about "
                f"{self.temporaries / GIB:.1f} GiB for a step of {self.rows} x {self.length} tokens on a device "
                f"of {self.have / GIB:.1f} GiB (fsdp {self.fsdp}, tp {self.tp})",
                None,
                f"Use {' or '.join(rest)}.",
            )
        )


def check(config: PreflightConfig) -> Checked:
    """Raises UserError for a model, mesh or batch that cannot work; see `Checked.refuse` for memory."""
    arch = shape(config)
    chip = accelerators.accelerator(config.mesh.accelerator, "mesh.accelerator")
    devices = count(config, chip)
    schedule = config.training
    rows = schedule.micro_batch_size or schedule.global_batch_size
    faults = []
    if schedule.global_batch_size % rows:
        faults.append(
            Fault(
                "training.microBatchSize",
                f"must divide globalBatchSize, {schedule.global_batch_size}",
                str(rows),
            )
        )
    length = config.dataset.max_length
    faults += meshes.rows(chip.name, length)
    if faults:
        raise UserError(faults)
    fsdp, tp = mesh.choose(config.mesh, arch, devices, rows)
    tokens = rows // fsdp * length
    kept = remat.kept(schedule, config.adapter, arch, kind=chip.name, fsdp=fsdp, tp=tp, tokens=tokens)
    names = KEPT[kept] if isinstance(kept, str) else kept
    return Checked(
        arch=arch,
        devices=devices,
        fsdp=fsdp,
        tp=tp,
        rows=rows,
        length=length,
        kept=names,
        resident=remat.resident(arch, config.adapter, fsdp, tp),
        temporaries=remat.temporaries(arch, config.adapter, names, tokens, tp)
        + remat.moving(arch, config.adapter, chip.name, fsdp, tp),
        have=chip.hbm_gib * GIB / chip.devices_per_chip,
    )


def shape(config: PreflightConfig) -> Architecture:
    """The model's architecture: of the catalog, or of a directory on this machine."""
    model = config.model
    if model.name in models.MODELS:
        return shapes.architecture(model.name)
    uri = uris.parse(model.source, "model.source")
    if uri.scheme != "file":
        known = ", ".join(models.MODELS)
        fix = f"Give a file:// directory, or one of {known}."
        raise UserError(
            Fault(
                "model.source",
                "is not read beforehand: the shape of a custom model is unknown",
                show(model.source),
                fix,
            )
        )
    return architecture.read(Path(uri.path))


def count(config: PreflightConfig, chip: accelerators.Accelerator) -> int:
    """Devices of the mesh, as JAX counts them."""
    if chip.kind == "tpu":
        row = accelerators.slice_of(chip.name, config.mesh.topology, place="mesh")
        return row.chips * chip.devices_per_chip
    return (config.mesh.fsdp or 1) * (config.mesh.tp or 1)
