"""What the backward pass keeps and what it computes again, so that it fits and is fast. No JAX.

A step's temporaries by the TPU compiler (31B, v5p 2x2x1, bfloat16): per token about 1.11 times the bytes
of the kept activations plus 2.8 residuals a layer, beside one gathered embedding table; on v6e weights that are
under way, too. Activations that cost least to compute again for their bytes are dropped first.
"""

from __future__ import annotations

from tunewright_workloads.contract import accelerators, hbm
from tunewright_workloads.contract.configs import AdapterConfig, Schedule
from tunewright_workloads.gemma import names
from tunewright_workloads.gemma.architecture import Architecture

ALL = ("attn", "q", "k", "v", "o", "down", "gate", "up", "xa")
CHOICES: tuple[tuple[str, ...], ...] = (ALL, ("attn", "q", "k", "v", "o", "down"), ("o", "down"), ())
"""From fastest to smallest."""

SHARE = 0.92
"""Of a chip's memory that may be used: the compiler's model is not exact."""

_WIDTH = 2  # bytes of an activation and of a weight, bfloat16
_LAYERS_ON_V6E = 8.9
_SCALE = 4 / hbm.SCALED  # bytes of a quantized weight's scale


def kept(
    schedule: Schedule,
    adapter: AdapterConfig,
    arch: Architecture,
    *,
    kind: str,
    fsdp: int,
    tp: int,
    tokens: int,
) -> str | tuple[str, ...]:
    """A remat policy of `gemma.program.Settings`: the one asked for, or for `auto` what fits.

    kind: the accelerator's name; tokens: of a micro batch on one device.
    """
    if schedule.remat != "auto":
        return schedule.remat
    chip = accelerators.ACCELERATORS[kind]
    if chip.kind == "cpu":
        return "none"
    room = SHARE * chip.hbm_gib * 2**30 / chip.devices_per_chip - resident(arch, adapter, fsdp, tp)
    room -= moving(arch, adapter, kind, fsdp, tp)
    for choice in CHOICES:
        if temporaries(arch, adapter, choice, tokens, tp) <= room:
            return choice
    return ()


def resident(arch: Architecture, adapter: AdapterConfig, fsdp: int, tp: int) -> float:
    """Bytes a device holds all along: base, adapter and both moments.

    Of an adapter only the side of the model's width is split over fsdp, the other one over tp. The
    scales of a quantized base are whole along the axis that they are summed over.
    """
    sizes = {name: _size(shape) for name, shape in names.tensors(arch).items()}
    base, lora = 0.0, 0.0
    for projection in names.projections(arch):
        back = projection.path.endswith(("attn_vec_einsum", "down_proj"))
        if adapter.quantize_base != "none":
            elements = sum(sizes.pop(name) for name in projection.weights)
            codes = hbm.BASE_BYTES[adapter.quantize_base] - _SCALE
            split = (fsdp, 1 if projection.path.endswith("down_proj") else tp) if back else (1, tp)
            base += elements * (codes / (fsdp * tp) + _SCALE / (split[0] * split[1]))
        if set(projection.targets) & set(adapter.targets):
            wide, other = projection.shapes(adapter.rank)
            if back:
                wide, other = other, wide
            lora += _size(wide) / fsdp + _size(other) / tp
    return base + sum(sizes.values()) * _WIDTH / (fsdp * tp) + lora * 3 * 4


def temporaries(
    arch: Architecture, adapter: AdapterConfig, saved: tuple[str, ...], tokens: int, tp: int
) -> float:
    """Bytes of a step's temporaries on one device."""
    kept = sum(activation(arch, adapter, name, i, tp) for i in range(arch.layers) for name in saved)
    return arch.vocab * arch.embed * _WIDTH / tp + tokens * (
        1.11 * kept + 2.8 * arch.layers * arch.embed * _WIDTH
    )


def moving(arch: Architecture, adapter: AdapterConfig, kind: str, fsdp: int, tp: int) -> float:
    """Bytes of weights that are on their way round the ring (`gemma.ring`) beside a step's temporaries.

    On v5p they are too few to tell. On v6e the one program that was compiled (31B, 2x4, `o` and `down` kept) took
    as much more as 8.9 layers weigh.
    """
    if kind != "v6e" or fsdp == 1 or tp > 1 or adapter.quantize_base != "none":
        return 0.0
    layers = sum(_size(shape) for name, shape in names.tensors(arch).items() if "embed" not in name)
    return min(1.0, _LAYERS_ON_V6E / arch.layers) * layers * _WIDTH


def activation(arch: Architecture, adapter: AdapterConfig, name: str, layer: int, tp: int) -> float:
    """Bytes of one kept activation of one token in one layer."""
    heads, kv, h = arch.heads, 0 if arch.is_shared(layer) else arch.kv_heads(layer), arch.dim(layer)
    elements = {
        "attn": heads * h / tp + 2 * heads / tp,
        "q": heads * h / tp,
        "k": kv * h / tp,
        "v": 0 if arch.k_is_v(layer) else kv * h / tp,
        "o": arch.embed,
        "down": arch.embed,
        "gate": arch.width(layer) / tp,
        "up": arch.width(layer) / tp,
        "xa": 7 * adapter.rank,
    }
    return elements[name] * _WIDTH


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
