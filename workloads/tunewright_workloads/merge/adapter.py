"""What the merge needs of an adapter, wherever it was trained.

Every LoRA is, weight by weight, `W + scale * b @ a` with W (out, in) as in Hugging Face files,
a (r, in) and b (out, r). Both readers (Orbax checkpoints of our trainer, PEFT directories) end here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError

Pair = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""a (r, in) and b (out, r), float32."""


@dataclass(frozen=True)
class Change:
    """What one base weight gets. `load` reads the pair when it is needed, not before."""

    weight: str
    scale: float
    rank: int
    inputs: int
    outputs: int
    load: Callable[[], Pair] = field(compare=False)
    keys: tuple[str, ...] = ()
    """The adapter's own names of the tensors, for messages."""


@dataclass(frozen=True)
class Adapter:
    """An adapter of known content.

    digest: sha256 over names, dtypes, shapes and bytes of its tensors.
    modules: projections that were adapted (a fused K and V counts once).
    base, dataset: fingerprint of the base and digest of the data it was trained on, where its trainer wrote one down.
    """

    source: str
    step: int | None
    rank: int
    alpha: float
    modules: int
    digest: str
    changes: dict[str, Change]
    base: str | None = None
    dataset: str | None = None
    directory: Path | None = None
    """The trainer's files of the step, as local copies; None for an adapter of PEFT."""


class Digest:
    """The adapter's digest, fed a tensor at a time in the order of names."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()

    def add(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Raises UserError naming the tensor when it holds NaN or infinity."""
        if not np.isfinite(array.astype(np.float32, copy=False)).all():
            raise UserError(Fault(name, "the adapter's tensor holds NaN or infinity", None, _DIVERGED))
        self._state.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        self._state.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def text(self) -> str:
        return self._state.hexdigest()


_DIVERGED = "The training diverged: lower the learning rate, or merge an earlier step."
