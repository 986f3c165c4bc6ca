"""Does a training step fit the slice? A lower bound by arithmetic, before anything is compiled.

What is refused here cannot fit; what passes may still not, which the compiler's own estimate
(`tunewright preflight`) says. Checked against compiled steps of the 31B on v5p 2x2x1: 15.9 GiB of
arguments (here 16.1), 11.9 GiB of temporaries with everything recomputed (here 7.2), 71.7 with
nothing recomputed (here 61).
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright_operator.api.job import FineTuneJobSpec
from tunewright_workloads.contract import hbm, meshes
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.contract.models import ModelSpec

GIB = 2**30

ADAPTER_BYTES = 16
"""f32: the parameter, its gradient and AdamW's two moments."""

LOSS_TOKENS = 512
"""Tokens whose logits exist at one time in the chunked loss."""


@dataclass(frozen=True)
class Need:
    """Bytes on one device, at least."""

    base: float
    adapter: float
    saved: float
    work: float
    have: float

    @property
    def total(self) -> float:
        return self.base + self.adapter + self.saved + self.work

    def __str__(self) -> str:
        return (
            f"at least {self.total / GIB:.1f} GiB of {self.have / GIB:.1f} GiB a device: base "
            f"{self.base / GIB:.1f}, adapter and optimizer {self.adapter / GIB:.1f}, saved activations "
            f"{self.saved / GIB:.1f}, one layer and the loss {self.work / GIB:.1f}"
        )


def need(spec: FineTuneJobSpec, model: ModelSpec, fsdp: int, tp: int) -> Need:
    """The memory of one device in a mesh of `fsdp` x `tp`."""
    chip, devices = spec.accelerator.chip, fsdp * tp
    tokens = spec.training.rows * spec.dataset.max_length / fsdp
    dim = max(model.head_dim, model.global_head_dim)
    hidden = max(model.hidden, model.wide_hidden or 0)
    kv = model.local_kv_heads * model.head_dim
    saved = 2 * tokens * model.layers * model.embed
    if spec.training.remat == "none":
        inner = 2 * model.heads * model.head_dim + 2 * kv + 2 * hidden
        saved = 2 * tokens * model.layers * (2 * model.embed + inner / tp)
    layer = model.embed * (3 * hidden + 2 * model.heads * dim + 2 * kv)
    work = 2 * tokens * (3 * hidden + 4 * model.heads * dim) / tp + 2 * layer / tp
    work += 8 * min(tokens, LOSS_TOKENS) * model.vocab / tp
    return Need(
        base=hbm.base_bytes(model, spec.adapter.quantize_base) / devices,
        adapter=model.lora_params(spec.adapter.rank, list(spec.adapter.targets)) * ADAPTER_BYTES / devices,
        saved=saved,
        work=work,
        have=chip.hbm_gib * GIB / chip.devices_per_chip,
    )


def _smaller(spec: FineTuneJobSpec, model: ModelSpec, fsdp: int, tp: int) -> list[str]:
    """How the base can be quantized so that the step fits, the most exact one first."""
    if spec.accelerator.chip.kind != "tpu" or spec.adapter.quantize_base != "none":
        return []
    tried = {
        word: need(
            spec.model_copy(update={"adapter": spec.adapter.model_copy(update={"quantize_base": word})}),
            model,
            fsdp,
            tp,
        )
        for word in ("int8", "nf4")
    }
    return [word for word, found in tried.items() if found.total <= found.have]


def check(spec: FineTuneJobSpec) -> str | None:
    """What the step needs, in a sentence. Raises UserError with the numbers where it cannot fit.

    None on a CPU, whose memory is not ours to know.
    """
    if spec.accelerator.chip.kind == "cpu":
        return None
    model = spec.model.spec
    if model is None:
        return "memory: not checked, the shape of a custom model is known to the workload only"
    mesh = spec.accelerator.mesh
    if mesh.fsdp and mesh.tp:
        fsdp, tp = mesh.fsdp, mesh.tp
    else:
        fsdp, tp = meshes.layouts(model, spec.accelerator.devices, spec.training.rows)[0]
    found = need(spec, model, fsdp, tp)
    if found.total <= found.have:
        return f"memory: {found}"
    fixes = []
    if found.base + found.adapter + found.work < found.have and spec.training.rows > fsdp:
        fixes.append(f"spec.training.microBatchSize: {max(fsdp, spec.training.rows // 2 // fsdp * fsdp)}")
    if spec.training.remat == "none":
        fixes.append("spec.training.remat: auto")
    if found.saved + found.work > 0.25 * found.have:
        fixes.append("a smaller spec.dataset.maxLength")
    fixes += [f"spec.adapter.quantizeBase: {word}" for word in _smaller(spec, model, fsdp, tp)[:1]]
    fixes.append("a larger spec.accelerator.topology")
    raise UserError(
        Fault(
            "spec.accelerator",
            f"does not hold a training step of {model.name} on {spec.accelerator.type} "
            f"{spec.accelerator.topology} (mesh fsdp {fsdp}, tp {tp}): {found}",
            None,
            f"Use {' or '.join(fixes)}.",
        )
    )
