"""Which bytes go where: the output's shards as a list of pieces. Pure: reads nothing, writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show
from tunewright_workloads.merge import tensors
from tunewright_workloads.merge.adapter import Adapter, Change
from tunewright_workloads.merge.tensors import Header, Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Piece:
    """One tensor of the output: copied when `change` is None, else merged and rounded to `dtype`."""

    tensor: Tensor
    dtype: str
    change: Change | None = None

    @property
    def size(self) -> int:
        """bytes in the output"""
        return self.tensor.count * tensors.WIDTHS[self.dtype]


@dataclass(frozen=True)
class Shard:
    """One output file. `whole` names the base file whose tensors it holds, all and in order."""

    name: str
    header: bytes
    pieces: tuple[Piece, ...]
    whole: str | None = None

    @property
    def size(self) -> int:
        return len(self.header) + sum(p.size for p in self.pieces)

    @property
    def files(self) -> list[str]:
        """Base files that it is made from."""
        return list(dict.fromkeys(p.tensor.file for p in self.pieces))


@dataclass(frozen=True)
class Layout:
    """The output's shards, and its index where it has one (None: a single file)."""

    shards: tuple[Shard, ...]
    index: bytes | None

    @property
    def tensors(self) -> int:
        return sum(len(s.pieces) for s in self.shards)


def indexed(text: bytes, headers: Iterable[Header]) -> None:
    """Checks an index against the files. Raises UserError with every tensor that is not where it says."""
    try:
        mapped = dict(json.loads(text)["weight_map"])
    except (ValueError, KeyError, TypeError):
        raise UserError(Fault(INDEX, "is not an index: a JSON object with weight_map is needed")) from None
    real = {t.name: h.file for h in headers for t in h.tensors}
    faults = [
        Fault(INDEX, f"says that {name} is in {mapped.get(name)!r}, it is in {real.get(name)!r}")
        for name in sorted(mapped.keys() | real.keys())
        if mapped.get(name) != real.get(name)
    ]
    if faults:
        raise UserError(faults[:20], f"{len(faults)} tensors are not where the base's index says")


def plan(
    headers: list[Header],
    adapter: Adapter,
    *,
    dtype: str,
    max_shard_size: int | None,
    index: bytes | None,
) -> Layout:
    """The output of base + adapter.

    dtype: MergeConfig.dtype; changed tensors are rounded to it ('keep': to their own).
    index: the base's index file, None for a single file.
    Raises UserError with every adapter tensor that fits no base tensor, and every base tensor that
    cannot be merged into.
    """
    known = {t.name: t for h in headers for t in h.tensors}
    faults = [f for c in adapter.changes.values() for f in _fits(c, known)]
    if faults:
        raise UserError(faults[:20], f"{len(faults)} tensors of the adapter do not fit the base")

    def piece(tensor: Tensor) -> Piece:
        change = adapter.changes.get(tensor.name)
        kept = change is None or dtype == "keep"
        return Piece(tensor, tensor.dtype if kept else tensors.NAMES[dtype], change)

    if max_shard_size is None:
        shards = [_same(h, tuple(piece(t) for t in h.tensors)) for h in headers]
        if index is not None and any(p.dtype != p.tensor.dtype for s in shards for p in s.pieces):
            index = _index(shards, json.loads(index))
        return Layout(tuple(shards), index)
    pieces = [piece(t) for h in headers for t in h.tensors]
    metadata = next((h.metadata for h in headers if h.metadata), None)
    groups: list[list[Piece]] = [[]]
    for item in pieces:
        if groups[-1] and sum(p.size for p in groups[-1]) + item.size > max_shard_size:
            groups.append([])
        groups[-1].append(item)
    many = len(groups) > 1
    shards = [
        _new(f"model-{i:05d}-of-{len(groups):05d}.safetensors" if many else SINGLE, group, metadata)
        for i, group in enumerate(groups, 1)
    ]
    return Layout(tuple(shards), _index(shards, json.loads(index) if index else {}) if many else None)


def _fits(change: Change, known: dict[str, Tensor]) -> list[Fault]:
    tensor = known.get(change.weight)
    place = " + ".join(change.keys) or change.weight
    if tensor is None:
        near = nearest(change.weight, list(known))
        return [
            Fault(place, "changes a tensor that the base does not have", show(change.weight), _near(near))
        ]
    if tensor.dtype not in tensors.FLOATS:
        return [Fault(place, f"changes {tensor.name}, which is quantized", show(tensor.dtype), _QUANTIZED)]
    if tensor.shape != (change.outputs, change.inputs):
        want = (change.outputs, change.inputs)
        return [Fault(place, f"is for a weight of shape {want}, {tensor.name} has {tensor.shape}")]
    return []


def _near(name: str | None) -> str | None:
    return (
        f"The nearest name in the base is {name}. Is it the base that the adapter was trained on?"
        if name
        else None
    )


_QUANTIZED = (
    "Merge into the unquantized checkpoint of the same model and quantize the result: a low-rank change "
    "added to rounded weights is not what was trained."
)


def _same(header: Header, pieces: tuple[Piece, ...]) -> Shard:
    raw = header.raw
    if any(p.dtype != p.tensor.dtype for p in pieces):
        raw = tensors.write([(p.tensor.name, p.dtype, p.tensor.shape) for p in pieces], header.metadata)
    return Shard(header.file, raw, pieces, header.file)


def _new(name: str, pieces: list[Piece], metadata: dict[str, str] | None) -> Shard:
    raw = tensors.write([(p.tensor.name, p.dtype, p.tensor.shape) for p in pieces], metadata)
    return Shard(name, raw, tuple(pieces))


def _index(shards: list[Shard], old: dict[str, Any]) -> bytes:
    """The index in the form that transformers writes; other metadata of the old one is kept."""
    total = sum(p.size for s in shards for p in s.pieces)
    names = {p.tensor.name: s.name for s in shards for p in s.pieces}
    data = {
        "metadata": {**old.get("metadata", {}), "total_size": total},
        "weight_map": dict(sorted(names.items())),
    }
    return (json.dumps(data, indent=2) + "\n").encode()
