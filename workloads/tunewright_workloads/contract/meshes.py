"""Which meshes fit: how the devices of a slice may be laid out as fsdp x tp, and rows of which length.

An axis that does not divide is an error at load time on a TPU, and a batch that does not divide
is silently replicated by Tunix, so both are refused before a slice is bought. Axes of Gemma 4:
fsdp shards D (the residual's width) of every matrix, the per-layer inputs and the rows of a batch;
tp splits the query heads, the kv heads of both kinds of layers, F of the MLP, the vocabulary, and D
and the per-layer inputs where a norm or an embedding lies on it. The workload checks the same with
what it reads from config.json; a test keeps the two together.
"""

from __future__ import annotations

from tunewright_workloads.contract import accelerators
from tunewright_workloads.contract.configs import LANES
from tunewright_workloads.contract.faults import Fault
from tunewright_workloads.contract.models import ModelSpec


def problem(model: ModelSpec | None, fsdp: int, tp: int) -> str | None:
    """Why fsdp x tp cannot shard the model, or None. An unknown (custom) model fits for all we know."""
    if model is None:
        return None
    if model.max_tensor_parallel % tp:
        heads = (
            f"{model.heads} heads, {model.local_kv_heads} local and {model.global_kv_heads} global kv heads"
        )
        return f"tp {tp} does not divide {heads} of {model.name}: at most {model.max_tensor_parallel}"
    for axis, ways, name, size in (
        ("tp", tp, "the MLP", model.hidden),
        ("tp", tp, "the MLP", model.wide_hidden),
        ("tp", tp, "the vocabulary", model.vocab),
        ("tp", tp, "the width", model.embed),
        ("tp", tp, "the per-layer inputs", model.ple),
        ("fsdp", fsdp, "the width", model.embed),
        ("fsdp", fsdp, "the per-layer inputs", model.ple),
    ):
        if size and size % ways:
            return f"{axis} {ways} does not divide {name} of {model.name} ({size})"
    return None


def layouts(model: ModelSpec | None, devices: int, rows: int) -> list[tuple[int, int]]:
    """Every (fsdp, tp) that uses all devices, shards the model and divides `rows`, smallest tp first.

    The first one is what `mesh: auto` means: sharding over fsdp costs the least communication.
    """
    limit = devices if model is None else model.max_tensor_parallel
    return [
        (devices // tp, tp)
        for tp in range(1, limit + 1)
        if devices % tp == 0 and rows % (devices // tp) == 0 and problem(model, devices // tp, tp) is None
    ]


def lanes(accelerator: str) -> int:
    """What the length of rows must be a multiple of there."""
    chip = accelerators.ACCELERATORS.get(accelerator)
    return LANES if chip is not None and chip.kind == "tpu" else 1


def rows(accelerator: str, length: int, place: str = "dataset.maxLength") -> list[Fault]:
    """Why rows of `length` tokens cannot be trained on or measured there, or nothing."""
    step = lanes(accelerator)
    if length % step == 0:
        return []
    rule = f"must be a multiple of {step} on TPUs: the attention kernel works on blocks of as many tokens"
    return [Fault(place, rule, str(length), f"Use {-(-length // step) * step}.")]
