"""The rows of a run, in the order in which the JAX program trains on them, for a torch DataLoader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.table import InMemoryTable

from tunewright_workloads.data.batches import FIELDS, Batches

IGNORED = -100
"""The label without loss, by the convention of transformers."""


class Masks(dict):
    """Attention masks by layer type, as Gemma 4 in transformers takes them: bool [B, 1, T, T].

    TRL counts a batch's tokens by summing its attention mask, which a mapping does not have; the
    count rides along under a key that no layer asks for.
    """

    def sum(self) -> torch.Tensor:
        """How many positions are no padding."""
        count: torch.Tensor = self["useful"]
        return count


def numbers(batches: Batches, steps: int) -> Dataset:
    """What TRL takes for a dataset: the numbers of the run's rows, in order.

    Row k is row k % B of step k // B's batch; the collator makes it when it is asked for. The
    fingerprint is given: the library would pickle PyArrow's classes for one, which fails where
    PyArrow has put them into builtins (Python 3.11.2, PyArrow 26).
    """
    count = steps * batches.batch_size
    return Dataset(InMemoryTable.from_pydict({"row": list(range(count))}), fingerprint=f"rows-{count}")


class Collator:
    """Row numbers -> model inputs, on the CPU.

    window: tokens that a local layer sees, its own included.
    """

    def __init__(self, batches: Batches, window: int) -> None:
        self.batches, self.window = batches, window
        self._batch = lru_cache(maxsize=2)(batches.at)

    def __call__(self, numbers: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """input_ids, labels, position_ids int64 [B, T]; attention_mask by layer type.

        labels[t] is the token at t where it is trained: transformers shifts them itself, so a
        target of position t stands at t + 1.
        """
        size = self.batches.batch_size
        chosen = [(self._batch(n["row"] // size), n["row"] % size) for n in numbers]
        return self.inputs(
            *(np.stack([getattr(batch, name)[row] for batch, row in chosen]) for name in FIELDS)
        )

    def inputs(self, *fields: np.ndarray) -> dict[str, Any]:
        """The same from a batch's arrays [B, T], in the order of `data.batches.FIELDS`."""
        tokens, targets, weights, segments, positions = map(torch.from_numpy, fields)
        labels = torch.full_like(tokens, IGNORED)
        labels[:, 1:] = torch.where(weights[:, :-1] > 0, targets[:, :-1], IGNORED)
        at = torch.arange(tokens.shape[1])
        distance = at[:, None] - at[None, :]
        same = (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] > 0)
        itself = distance == 0  # a row of the mask that allows nothing would make NaN of padding
        full = (same & (distance >= 0)) | itself
        local = full & (distance < self.window)
        return {
            "input_ids": tokens.long(),
            "labels": labels.long(),
            "position_ids": positions.long(),
            "attention_mask": Masks(
                full_attention=full[:, None], sliding_attention=local[:, None], useful=(segments > 0).sum()
            ),
        }
