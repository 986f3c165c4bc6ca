"""What a model takes of a slice's memory: its frozen base while it is trained; all of it while it serves.

Serving: weights, activations, then the KV cache.

Pure arithmetic on the catalog's shapes; what a runtime adds of its own is left to the share of the
memory that the engine is told not to use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tunewright_workloads.contract.accelerators import Accelerator
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.contract.models import ModelSpec

GIB = 2**30

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}

SCALED = 64
"""Weights of a quantized base that share one float32 scale."""

BASE_BYTES = {"none": 2.0, "int8": 1 + 4 / SCALED, "nf4": 0.5 + 4 / SCALED}
"""Bytes that a projection's frozen weight takes while training, its share of the scale included."""


def base_bytes(model: ModelSpec, quantized: Literal["none", "int8", "nf4"]) -> float:
    """Of a frozen base on all devices together, bfloat16 where it is not quantized.

    Only the projections of attention and MLP are: embeddings and per-layer inputs stay.
    """
    kept = model.embed * model.vocab
    kept += model.ple * model.layers * (model.vocab + 3 * model.embed)
    return kept * BASE_BYTES["none"] + (model.params - kept) * BASE_BYTES[quantized]


@dataclass(frozen=True)
class Fit:
    """What one device holds, in bytes, at `length` tokens a sequence.

    usable:    of the device's memory, what the engine may take.
    sequence:  KV cache of one sequence of full length.
    sequences: how many of those fit beside weights and activations.
    """

    devices: int
    usable: float
    weights: float
    activations: float
    sequence: float
    length: int

    @property
    def room(self) -> float:
        """Left for the KV cache; negative when weights and activations alone do not fit."""
        return self.usable - self.weights - self.activations

    @property
    def sequences(self) -> int:
        return max(0, math.floor(self.room / self.sequence))

    @property
    def tokens(self) -> int:
        """Tokens of KV cache in all sequences together."""
        return max(0, math.floor(self.room / (self.sequence / self.length)))

    def __str__(self) -> str:
        return (
            f"{self.weights / GIB:.2f} GiB of weights + {self.activations / GIB:.2f} GiB of activations "
            f"+ {self.sequence / GIB:.2f} GiB of KV cache a sequence of {self.length} tokens, "
            f"of {self.usable / GIB:.2f} GiB usable on each of {self.devices} devices"
        )


def fit(
    model: ModelSpec,
    chip: Accelerator,
    *,
    tensor_parallel: int,
    length: int,
    batched_tokens: int,
    sequences: int,
    utilization: float,
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
    kv_dtype: Literal["bfloat16", "float16", "float32", "fp8"] = "bfloat16",
    weight_bytes: float | None = None,
) -> Fit:
    """One replica of `tensor_parallel` devices.

    weight_bytes: of all weight files, where they are known; else the catalog's text parameters
                  (a multimodal checkpoint's vision tower, about a GB, is then not counted).
    sequences:    decoded together; they size the logits.

    The KV cache counts every layer at full length: whether an engine frees what slid out of a
    window is its own affair, and one that does only has more room. Key and value heads that do not
    divide over the devices are replicated, as vLLM does.
    """
    width, tp = BYTES[dtype], tensor_parallel
    weights = (model.params * width if weight_bytes is None else weight_bytes) / tp
    first_shared = model.layers - model.kv_shared_layers
    per_token = 0.0
    for layer in range(first_shared):
        wide = model.is_global(layer)
        heads = model.global_kv_heads if wide else model.local_kv_heads
        dim = model.global_head_dim if wide else model.head_dim
        per_token += 2 * math.ceil(heads / tp) * dim * BYTES[kv_dtype]
    # The largest moment of a step: the residual, its norm and the sum in f32; the queries and the
    # attention's answer; gate and up of the MLP. Then, once, the logits in f32 beside their softmax.
    dim = max(model.head_dim, model.global_head_dim)
    hidden = max(model.hidden, model.wide_hidden or 0)
    token = width * (4 * model.embed + (2 * model.heads * dim + 3 * hidden) / tp)
    token += width * model.layers * model.ple
    logits = 2 * 4 * sequences * model.vocab
    return Fit(
        devices=tp,
        usable=chip.hbm_gib * GIB / chip.devices_per_chip * utilization,
        weights=weights,
        activations=batched_tokens * token + logits,
        sequence=per_token * length,
        length=length,
    )


def refuse(found: Fit, sequences: int, place: str = "spec.accelerator") -> None:
    """Raises UserError with the numbers when `sequences` of full length do not fit."""
    if found.sequences >= sequences:
        return
    need = found.weights + found.activations + sequences * found.sequence
    if found.room <= found.sequence:
        fix = "Take a larger slice, or a smaller maxModelLength or maxBatchedTokens"
    else:
        fix = f"{found.sequences} sequences fit: ask for fewer, for a shorter maxModelLength"
    raise UserError(
        Fault(
            place,
            f"does not hold the model and {sequences} sequence{'s' if sequences > 1 else ''} of "
            f"{found.length} tokens: {found}",
            f"{need / GIB:.2f} GiB needed",
            fix + ", or kvCacheDtype fp8.",
        )
    )
