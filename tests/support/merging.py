"""Adapters for the merge's tests, saved as the trainer saves them, and what they must merge to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open

from tunewright_workloads import storage
from tunewright_workloads.contract.configs import MergeConfig, ModelSource
from tunewright_workloads.gemma import architecture, names


def arrays(
    base: Path, *, rank: int = 4, seed: int = 0, targets: set[str] | None = None
) -> dict[str, np.ndarray]:
    """A random adapter of every projection (or of some targets) by dotted name, f32."""
    rng, found = np.random.default_rng(seed), {}
    for p in names.projections(architecture.read(base)):
        if targets is None or targets & set(p.targets):
            for leaf, shape in zip((p.a, p.b), p.shapes(rank), strict=True):
                found[f"{p.path}.{leaf}"] = (rng.standard_normal(shape) * 0.1).astype(np.float32)
    return found


def nested(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in flat.items():
        *path, leaf = name.split(".")
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at[leaf] = array
    return tree


def save(
    output: Path, base: Path, flat: dict[str, np.ndarray], *, step: int = 3, rank: int = 4, alpha: float = 8.0,
    **state: Any,
) -> None:  # fmt: skip
    """`<output>/checkpoints/<step>` as the trainer's CheckpointManager writes it."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager((output / "checkpoints").resolve()) as manager:
        data = {
            "step": step, "rank": rank, "alpha": alpha, "base_digest": storage.fingerprint(base), **state,
        }  # fmt: skip
        manager.save(
            step,
            args=ocp.args.Composite(
                adapter=ocp.args.StandardSave(nested(flat)), state=ocp.args.JsonSave(data)
            ),
        )
        manager.wait_until_finished()


def expected(
    base: Path, flat: dict[str, np.ndarray], scale: float, dtype: Any = ml_dtypes.bfloat16
) -> dict[str, np.ndarray]:
    """Every tensor of the merged model, computed the plain way: whole matrices, f32, one rounding."""
    found = tensors(base)
    prefix = names.text_prefix(found)
    for p in names.projections(architecture.read(base)):
        if f"{p.path}.{p.a}" in flat:
            deltas = p.delta(flat[f"{p.path}.{p.a}"], flat[f"{p.path}.{p.b}"])
            for weight, delta in zip(p.weights, deltas, strict=True):
                old = found[prefix + weight]
                total = old.astype(np.float32) + np.float32(scale) * delta
                found[prefix + weight] = total.astype(old.dtype if dtype is None else dtype)
    return found


def tensors(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint, read by the safetensors library."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = file.get_tensor(name)
    return found


def config(base: Path, adapter: Path | str, output: Path | str, work: Path, **more: Any) -> MergeConfig:
    def uri(place: Path | str) -> str:
        return place if isinstance(place, str) else f"file://{place}"

    return MergeConfig(
        job="test/merge", model=ModelSource(name="custom", source=uri(base)), adapter=uri(adapter),
        output=uri(output), work=str(work), **more,
    )  # fmt: skip


def content(directory: Path, *, manifest: bool = True) -> dict[str, bytes]:
    """Every file of a published directory by relative path."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.is_file() and (manifest or p.name != "tunewright.json")
    }
