"""Adapters as our trainer leaves them: Orbax checkpoints, read without Orbax.

Orbax imports JAX, which alone costs more memory than a merge may take. Its files are tensorstore's:
a zarr array a parameter inside an OCDBT store, with the tree's shape in `_METADATA`. A step counts
once Orbax has written both its commit marks; before that it is a copy in progress.
"""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show
from tunewright_workloads.gemma import names
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.merge.adapter import Adapter, Change, Digest, Pair
from tunewright_workloads.storage.store import Store

CHECKPOINTS = "checkpoints"
_COMMIT = "commit_success.txt"
_META = "_CHECKPOINT_METADATA"


def steps(store: Store) -> list[int]:
    """The committed steps of a training output, oldest first."""
    found: dict[int, set[str]] = {}
    for entry in store.entries(CHECKPOINTS):
        parts = entry.name.split("/")
        if len(parts) >= 3 and parts[1].isdigit():
            found.setdefault(int(parts[1]), set()).add("/".join(parts[2:]))
    ready = []
    for step, files in sorted(found.items()):
        if {_COMMIT, _META, f"adapter/{_COMMIT}"} <= files and any(f.startswith("state/") for f in files):
            name = f"{CHECKPOINTS}/{step}/{_META}"
            try:
                committed = json.loads(store.get(name)).get("commit_timestamp_nsecs")
            except (ValueError, AttributeError):
                fix = "Restore it, or remove the step's directory to merge an earlier one."
                raise UserError(
                    Fault(f"{store.uri}/{name}", "is damaged: it is not Orbax's", None, fix)
                ) from None
            if committed:
                ready.append(step)
    return ready


def choose(store: Store, step: int | None) -> int:
    """`step` when it is committed, else the newest that is. Raises UserError when there is none."""
    ready = steps(store)
    if step is None and ready:
        return ready[-1]
    if step is not None and step in ready:
        return step
    place = "adapter" if step is None else "step"
    there = (
        f"Committed steps: {', '.join(map(str, ready))}."
        if ready
        else "The training has committed no step yet."
    )
    above, below, _ = f"{store.uri}/".rpartition(f"/{CHECKPOINTS}/")
    if below:
        there = f"The adapter is the training's output: did you mean {above}?"
    rule = f"there is no committed checkpoint in {store.uri}/{CHECKPOINTS}"
    raise UserError(Fault(place, rule, None if step is None else show(step), there))


def fetch(store: Store, step: int, work: Path) -> Path:
    """The step's adapter and state as local files below `work`; returns the step's directory."""
    top = work / "adapter" / str(step)
    below = f"{CHECKPOINTS}/{step}/"
    for entry in store.entries(f"{CHECKPOINTS}/{step}"):
        name = entry.name.removeprefix(below)
        if name.startswith(("adapter/", "state/")):
            store.fetch(entry, top / name)
    return top


def load(directory: Path, architecture: Architecture, source: str, step: int) -> Adapter:
    """The adapter of one committed step.

    directory: `<output>/checkpoints/<step>` as local files.
    Raises UserError naming every adapter tensor that is missing or that fits no projection.
    """
    record = state(directory)
    arrays = _Arrays(directory / "adapter")
    rank, alpha = int(record["rank"]), float(record["alpha"])
    found = {p.path: p for p in names.projections(architecture)}
    keys = {f"{path}.{leaf}": p for path, p in found.items() for leaf in (p.a, p.b)}
    faults = []
    for name in sorted(arrays.names - keys.keys()):
        near = nearest(name, list(keys))
        fix = f"The nearest one is {near}." if near else None
        faults.append(Fault(name, "the adapter's tensor belongs to no projection of the base", None, fix))
    present = {p.path: p for name, p in keys.items() if name in arrays.names}
    wanted = set(record.get("targets") or ())
    for path, p in sorted(found.items()):
        missing = [f"{path}.{leaf}" for leaf in (p.a, p.b) if f"{path}.{leaf}" not in arrays.names]
        if missing and (path in present or wanted & set(p.targets)):
            faults += [Fault(m, "the adapter has no such tensor") for m in missing]
    if not present and not faults:
        faults.append(Fault(source, "the checkpoint holds no adapter tensor"))
    if faults:
        raise UserError(faults[:20], f"{len(faults)} tensors of the adapter do not match the base")
    changes: dict[str, Change] = {}
    for path, p in sorted(present.items()):
        shapes = arrays.shape(f"{path}.{p.a}"), arrays.shape(f"{path}.{p.b}")
        if shapes[0][-1] != rank or shapes[1][0] != rank:
            raise UserError(Fault(path, f"the adapter's state says rank {rank}", show(shapes)))
        inputs = int(np.prod(shapes[0][:-1]))
        outputs = int(np.prod(shapes[1][1:])) // len(p.weights)
        for i, weight in enumerate(p.weights):
            load_pair = functools.partial(_pair, arrays, f"{path}.{p.a}", f"{path}.{p.b}", i, len(p.weights))
            keys_ = (f"{path}.{p.a}", f"{path}.{p.b}")
            changes[weight] = Change(weight, alpha / rank, rank, inputs, outputs, load_pair, keys_)
    return Adapter(
        source, step, rank, alpha, len(present), _digest(arrays), changes,
        base=record.get("base_digest"),
        dataset=record.get("dataset_digest"), directory=directory,
    )  # fmt: skip


def digest(directory: Path) -> str:
    """The digest of one committed step's adapter: that of `Adapter`, for those who need no more of it."""
    return _digest(_Arrays(directory / "adapter"))


def _digest(arrays: _Arrays) -> str:
    found = Digest()
    for name in sorted(arrays.names):
        found.add(name, arrays.read(name))
    return found.text()


def _pair(arrays: _Arrays, a_name: str, b_name: str, part: int, parts: int) -> Pair:
    """Qwix's arrays (in..., r) and (r, [parts,] out...) as a (r, in) and b (out, r) of one weight."""
    a, b = arrays.read(a_name), arrays.read(b_name)
    rank = a.shape[-1]
    a = a.reshape(-1, rank).T.astype(np.float32)
    b = b.reshape(rank, parts, -1)[:, part].T.astype(np.float32)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def state(directory: Path) -> dict[str, Any]:
    """The trainer's record of a step: rank, alpha, targets, digests. Raises UserError."""
    path = directory / "state" / "metadata"
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
        _ = int(record["rank"]), float(record["alpha"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            Fault(str(path), "is no state of our trainer: a JSON object with rank and alpha is needed")
        ) from None
    return record


def tree(directory: Path) -> dict[str, Any]:
    """A step's whole adapter as the nested dict that it was saved from."""
    arrays = _Arrays(directory / "adapter")
    nested: dict[str, Any] = {}
    for name in sorted(arrays.names):
        *path, leaf = name.split(".")
        at: dict[str, Any] = nested
        for part in path:
            at = at.setdefault(part, {})
        at[leaf] = arrays.read(name)
    return nested


class _Arrays:
    """The arrays of an Orbax tree by dotted name, opened when they are read."""

    def __init__(self, directory: Path) -> None:
        try:
            meta = json.loads((directory / "_METADATA").read_text(encoding="utf-8"))
            tree = meta["tree_metadata"]
            self.names = {".".join(str(k["key"]) for k in v["key_metadata"]) for v in tree.values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(Fault(str(directory), "is no Orbax checkpoint of an adapter")) from None
        self._base = f"file://{directory.resolve()}/"
        self._driver = "zarr3" if meta.get("use_zarr3") else "zarr"
        self._ocdbt = bool(meta.get("use_ocdbt", True))
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _array(self, name: str) -> Any:
        with self._lock:
            if name not in self._open:
                if self._ocdbt:
                    kvstore = {"driver": "ocdbt", "base": self._base, "path": f"{name}/"}
                else:
                    kvstore = {"driver": "file", "path": f"{self._base.removeprefix('file://')}{name}/"}
                spec = {"driver": self._driver, "kvstore": kvstore}
                try:
                    self._open[name] = tensorstore.open(spec, open=True, read=True).result()
                except ValueError as error:
                    raise UserError(
                        Fault(name, f"the checkpoint's array cannot be opened: {error}")
                    ) from None
            return self._open[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._array(name).shape)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(self._array(name).read().result())
        except ValueError as error:
            raise UserError(Fault(name, f"the checkpoint's array cannot be read: {error}")) from None
