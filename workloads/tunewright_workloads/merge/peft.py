"""Adapters in PEFT's format: read for merging, written for engines that load adapters.

A PEFT directory is adapter_config.json and adapter_model.safetensors with
`base_model.model.<module>.lora_A.weight` (r, in) and `.lora_B.weight` (out, r).
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.gemma.names import PREFIXES
from tunewright_workloads.merge import tensors
from tunewright_workloads.merge.adapter import Adapter, Change, Digest, Pair
from tunewright_workloads.storage.store import Store

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")


def present(store: Store) -> bool:
    """Whether the store holds a PEFT adapter."""
    return store.exists(CONFIG)


def load(store: Store, work: Path, known: Collection[str]) -> Adapter:
    """A PEFT adapter for a base with the tensors `known`.

    Text modules match whether the adapter was trained on the multimodal class or on the text-only one.
    Raises UserError with every setting that this merge does not do, and every tensor without a partner.
    """
    config = _config(store)
    entries = {e.name: e for e in store.entries()}
    if WEIGHTS not in entries:
        fix = "Save it with safe_serialization=True." if "adapter_model.bin" in entries else None
        raise UserError(Fault(f"{store.uri}/{WEIGHTS}", "is not there", None, fix))
    path = work / "adapter" / WEIGHTS
    store.fetch(entries[WEIGHTS], path)
    with path.open("rb") as file:
        header = tensors.read(
            WEIGHTS, path.stat().st_size, lambda at, size: os.pread(file.fileno(), size, at)
        )
    sides: dict[str, dict[str, tensors.Tensor]] = {}
    faults = []
    for tensor in sorted(header.tensors, key=lambda t: t.name):
        match = _KEY.match(tensor.name)
        if not match:
            faults.append(Fault(tensor.name, "is no LoRA factor of a linear layer; it cannot be merged"))
        elif tensor.dtype not in tensors.FLOATS or len(tensor.shape) != 2:
            faults.append(Fault(tensor.name, "must be a matrix of f32, bf16 or f16", show(tensor.dtype)))
        else:
            sides.setdefault(match["module"], {})[match["side"]] = tensor
    digest = Digest()
    for tensor in sorted(header.tensors, key=lambda t: t.name):
        if tensor.dtype in tensors.FLOATS:
            digest.add(tensor.name, _array(path, tensor))
    changes: dict[str, Change] = {}
    twins: list[tuple[str, str]] = []
    for module, pair in sorted(sides.items()):
        keys = tuple(t.name for t in pair.values())
        if len(pair) == 1:
            other = "lora_B" if "A" in pair else "lora_A"
            faults.append(Fault(keys[0], f"has no {other} beside it"))
            continue
        a, b = pair["A"], pair["B"]
        rank = a.shape[0]
        if b.shape[1] != rank:
            faults.append(Fault(module, f"lora_A has rank {rank}, lora_B has rank {b.shape[1]}"))
            continue
        alpha = _pattern(config.get("alpha_pattern") or {}, module, float(config["lora_alpha"]))
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        weight = _weight(module, known)
        twin = module.replace(".v_proj", ".k_proj")
        if weight not in known and twin != module and _weight(twin, known) in known and twin in sides:
            twins.append((module, twin))  # a K = V layer: the model has one projection for both
            continue
        load_pair = functools.partial(_pair, path, a, b)
        changes[weight] = Change(weight, scale, rank, a.shape[1], b.shape[0], load_pair, keys)
    for module, twin in twins:
        for side in "AB":
            if len(sides[twin]) == 2 and not np.array_equal(
                _array(path, sides[module][side]), _array(path, sides[twin][side])
            ):
                rule = "the layer has one projection for K and V, so v_proj's factors must equal k_proj's"
                faults.append(Fault(sides[module][side].name, rule))
    if not sides and not faults:
        faults.append(Fault(f"{store.uri}/{WEIGHTS}", "holds no LoRA factor"))
    if faults:
        raise UserError(faults[:20], f"{len(faults)} things in the PEFT adapter cannot be merged")
    return Adapter(
        str(store.uri),
        None,
        int(config["r"]),
        float(config["lora_alpha"]),
        len(changes),
        digest.text(),
        changes,
    )


def _config(store: Store) -> dict[str, Any]:
    place = f"{store.uri}/{CONFIG}"
    try:
        config = json.loads(store.get(CONFIG))
        if not isinstance(config, dict):
            raise TypeError
        _ = int(config["r"]), float(config["lora_alpha"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            Fault(place, "is no LoRA configuration: a JSON object with r and lora_alpha is needed")
        ) from None
    plain = {
        "peft_type": ("LORA", None), "bias": ("none", None), "use_dora": (False, None),
        "fan_in_fan_out": (False, None), "modules_to_save": (None, []), "lora_bias": (False, None),
        "trainable_token_indices": (None, [], {}), "use_qalora": (False, None),
        "target_parameters": (None, []), "alora_invocation_tokens": (None, []),
    }  # fmt: skip
    faults = [
        Fault(f"{place}: {key}", f"only {show(allowed[0])} can be merged", show(config[key]))
        for key, allowed in plain.items()
        if key in config and config[key] not in allowed
    ]
    if faults:
        raise UserError(faults)
    return config


def _pattern(patterns: dict[str, float], module: str, default: float) -> float:
    """PEFT's rule for rank_pattern and alpha_pattern: the first that matches the end of the name."""
    for pattern, value in patterns.items():
        if re.match(rf"(?:.*\.)?(?:{pattern})$", module):
            return float(value)
    return default


def _weight(module: str, known: Collection[str]) -> str:
    """The base's tensor of a module, under the base's own prefix."""
    name = f"{module}.weight"
    if name in known:
        return name
    for prefix in PREFIXES:
        if name.startswith(prefix):
            for other in PREFIXES:
                if other + name.removeprefix(prefix) in known:
                    return other + name.removeprefix(prefix)
            return name
    return name


def _array(path: Path, tensor: tensors.Tensor) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        data = os.pread(file.fileno(), tensor.size, tensor.begin)
    return np.frombuffer(data, tensors.FLOATS[tensor.dtype]).reshape(tensor.shape)


def _pair(path: Path, a: tensors.Tensor, b: tensors.Tensor) -> Pair:
    return _array(path, a).astype(np.float32), _array(path, b).astype(np.float32)


def write(adapter: Adapter, known: Collection[str], base: str, directory: Path) -> list[Path]:
    """Writes an adapter in PEFT's format into `directory`; returns the files, the configuration last.

    known: the base's tensors. On a layer where K and V share one projection (the base has k_proj and
    no v_proj) the same factors go out as v_proj too: vLLM applies an adapter of k_proj to K only.
    base: goes into base_model_name_or_path.
    """
    changes: list[tuple[str, Change]] = []
    for weight, change in sorted(adapter.changes.items()):
        module = weight.removesuffix(".weight")
        changes.append((module, change))
        twin = module.replace(".k_proj", ".v_proj")
        if twin != module and f"{twin}.weight" not in known:
            changes.append((twin, change))
    changes.sort(key=lambda item: item[0])
    rows: list[tuple[str, str, tuple[int, ...]]] = []
    for module, c in changes:
        rows.append((f"base_model.model.{module}.lora_A.weight", "F32", (c.rank, c.inputs)))
        rows.append((f"base_model.model.{module}.lora_B.weight", "F32", (c.outputs, c.rank)))
    directory.mkdir(parents=True, exist_ok=True)
    weights = directory / WEIGHTS
    with weights.open("wb") as file:
        file.write(tensors.write(rows, {"format": "pt"}))
        for _, c in changes:
            for array in c.load():
                file.write(np.ascontiguousarray(array, "<f4").data)
    ranks = {m: c.rank for m, c in changes if c.rank != adapter.rank}
    alphas = {
        m: c.scale * c.rank
        for m, c in changes
        if not math.isclose(c.scale * c.rank, adapter.alpha, rel_tol=1e-6)
    }
    config = directory / CONFIG
    config.write_text(
        json.dumps(_written(adapter, base, [m for m, _ in changes], ranks, alphas), indent=2) + "\n"
    )
    return [weights, config]


def _written(
    adapter: Adapter, base: str, modules: list[str], ranks: dict[str, int], alphas: dict[str, float]
) -> dict[str, Any]:
    ends = sorted({m.rsplit(".", 1)[-1] for m in modules})
    text = next((p for p in PREFIXES if all(m.startswith(p) for m in modules)), "")
    # A pattern, not a list of endings: vision and audio towers have projections of the same names.
    target = rf"{re.escape(text)}.*\.({'|'.join(ends)})" if text else ends
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
        "r": adapter.rank, "lora_alpha": adapter.alpha, "lora_dropout": 0.0, "bias": "none",
        "target_modules": target, "rank_pattern": {re.escape(m): r for m, r in ranks.items()},
        "alpha_pattern": {re.escape(m): a for m, a in alphas.items()}, "use_rslora": False, "use_dora": False,
        "fan_in_fan_out": False, "inference_mode": True, "modules_to_save": None,
    }  # fmt: skip
