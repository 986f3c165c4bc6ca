"""How a Gemma 4 is laid out on a mesh with the axes `fsdp` and `tp`: which sizes must divide. No JAX."""

from __future__ import annotations

from collections.abc import Mapping

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gemma.architecture import Architecture

AXES = ("fsdp", "tp")


def faults(arch: Architecture, mesh: Mapping[str, int], place: str = "mesh") -> list[Fault]:
    """What does not divide, each once, with its numbers. `mesh` maps axis names to sizes."""
    locals_ = not all(arch.globals)
    rows: list[tuple[str, int, str]] = [
        ("query heads", arch.heads, "tp"),
        *([("local key/value heads", arch.local_kv_heads, "tp")] if locals_ else []),
        *([("global key/value heads", arch.global_kv_heads, "tp")] if any(arch.globals) else []),
        ("the MLP's width", arch.hidden, "tp"),
        ("the vocabulary", arch.vocab, "tp"),
        ("the model's width", arch.embed, "tp"),
        ("the model's width", arch.embed, "fsdp"),
    ]
    if arch.ple:
        rows += [("the per-layer inputs' width", arch.ple, axis) for axis in AXES]
    result = []
    for what, size, axis in rows:
        ways = mesh.get(axis, 1)
        if size % ways:
            best = max(n for n in range(1, ways + 1) if size % n == 0)
            result.append(
                Fault(
                    f"{place}.{axis}",
                    f"must divide {what}, {size}",
                    str(ways),
                    f"The largest {axis} below it that does is {best}.",
                )
            )
    return result


def check(arch: Architecture, mesh: Mapping[str, int], place: str = "mesh") -> None:
    """Raises UserError with every axis that does not divide."""
    found = faults(arch, mesh, place)
    if found:
        raise UserError(found)
