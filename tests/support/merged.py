"""Merged models, right and wrong ones, made by hand in NumPy: no part of the product's own merge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from support.serving import manifest
from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.gemma import names, tiny

Tensors = dict[str, np.ndarray]


def base(directory: Path) -> Path:
    tiny.write(directory)
    return directory


def merge(source: Path, target: Path, scale: float = 1.0) -> Path:
    """The base plus `scale` times one fixed random adapter of rank 4 on every projection."""

    def change(name: str, weight: np.ndarray) -> np.ndarray:
        if not name.endswith("_proj.weight"):
            return weight
        dice = np.random.default_rng(list(name.encode()))
        outputs, inputs = weight.shape
        down = dice.normal(0, inputs**-0.5, (4, inputs))
        up = dice.normal(0, 0.12, (outputs, 4))
        return (weight + scale * (up @ down)).astype(weight.dtype)

    return edit(source, target, change)


def edit(
    source: Path,
    target: Path,
    change: Callable[[str, np.ndarray], np.ndarray | None],
    probes: list[Probe] | None = None,
) -> Path:
    """A copy whose text tensors went through `change` (name without prefix; None removes it), with a
    manifest that agrees with the files."""
    shutil.copytree(source, target)
    index_path = target / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    for path in sorted(target.glob("*.safetensors")):
        tensors = load_file(path)
        prefix = names.text_prefix(index["weight_map"])
        kept: Tensors = {}
        for name, tensor in tensors.items():
            changed = change(name.removeprefix(prefix), tensor) if name.startswith(prefix) else tensor
            if changed is None:
                del index["weight_map"][name]
            else:
                kept[name] = np.ascontiguousarray(changed)
        save_file(kept, path, metadata={"format": "pt"})
    index_path.write_text(json.dumps(index))
    manifest(target, probes)
    return target


def without_tensor(source: Path, target: Path, probes: list[Probe]) -> Path:
    return edit(source, target, lambda n, t: None if n == "layers.1.mlp.up_proj.weight" else t, probes)


def with_zeroed_layer(source: Path, target: Path, probes: list[Probe]) -> Path:
    return edit(
        source, target, lambda n, t: t * 0 if n.startswith("layers.2.") and "_proj" in n else t, probes
    )


def with_other_tokenizer(source: Path, target: Path, probes: list[Probe]) -> Path:
    """Same size, same special tokens; the ids of ordinary pieces are turned round."""
    shutil.copytree(source, target)
    path = target / "tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    added = {t["id"] for t in document["added_tokens"]}
    ordinary = sorted(i for i in vocab.values() if i not in added)
    turned = dict(zip(ordinary, reversed(ordinary), strict=True))
    document["model"]["vocab"] = {piece: turned.get(i, i) for piece, i in vocab.items()}
    path.write_text(json.dumps(document, ensure_ascii=False))
    manifest(target, probes)
    return target
