"""From a step's number to its batch, the same on every restart and on any number of hosts.

Order and packing follow from (seed, epoch) alone and a batch from its step alone, so there is no
loader state to save: the position is the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from tunewright_workloads.data import packing
from tunewright_workloads.data.dataset import Dataset


@dataclass(frozen=True)
class Batch:
    """One step's rows. All arrays [B, T].

    tokens int32; targets int32, the next token of the same example; weights float32, 1 where the
    target is trained; segments int32, 1.. by example within the row, 0 padding; positions int32,
    from 0 in each example.
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    segments: np.ndarray
    positions: np.ndarray

    @property
    def useful(self) -> int:
        """Tokens that are not padding."""
        return int((self.segments > 0).sum())

    @property
    def trained(self) -> int:
        return int(self.weights.sum())

    def rows(self, part: slice) -> Batch:
        """Some rows of it, as one host feeds them."""
        return Batch(*(getattr(self, f)[part] for f in FIELDS))

    def arrays(self) -> dict[str, np.ndarray]:
        return {f: getattr(self, f) for f in FIELDS}


FIELDS = ("tokens", "targets", "weights", "segments", "positions")


def multiple(length: int) -> int:
    """What row lengths are rounded up to: whole vector registers where rows are long."""
    return 16 if length <= 512 else 128


def round_up(length: int, lanes: int = 1) -> int:
    step = math.lcm(multiple(length), lanes)
    return -(-length // step) * step


@dataclass(frozen=True, eq=False)
class Batches:
    """All batches of a run over one dataset.

    capacity: most tokens of a packed row; None: one example a row. shuffle=False keeps the file's
    order (validation). The last batch of an epoch is filled with empty rows, which weigh nothing.
    lanes: what the accelerator needs rows' lengths to be a multiple of (`contract.meshes.lanes`).
    """

    dataset: Dataset
    batch_size: int
    max_length: int
    packing: bool = True
    seed: int = 0
    shuffle: bool = True
    pad_id: int = 0
    lanes: int = 1

    @property
    def length(self) -> int:
        """T of every batch: one program is compiled, so one shape is used."""
        lengths = self.dataset.lengths
        most = min(self.max_length, int(lengths.sum())) if self.packing else int(lengths.max())
        return round_up(most, self.lanes)

    @lru_cache(maxsize=2)  # noqa: B019  (a run has one or two of these objects)
    def bins(self, epoch: int) -> list[list[int]]:
        """The epoch's rows of the batch, each a list of example numbers."""
        count = len(self.dataset)
        rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        if not self.packing:
            return [[int(i)] for i in order]
        return packing.pack(self.dataset.lengths, order, self.max_length, rng)

    @cache  # noqa: B019
    def steps_in(self, epoch: int) -> int:
        return -(-len(self.bins(epoch)) // self.batch_size)

    def steps(self, epochs: float) -> int:
        """Optimizer steps of so many passes, at least one."""
        whole = math.floor(epochs)
        total = sum(self.steps_in(e) for e in range(whole))
        if epochs > whole:
            total += math.ceil((epochs - whole) * self.steps_in(whole))
        return max(1, total)

    def place(self, step: int) -> tuple[int, int]:
        """Step (from 0) -> (epoch, batch within it)."""
        epoch = 0
        while step >= (count := self.steps_in(epoch)):
            step -= count
            epoch += 1
        return epoch, step

    def epoch(self, step: int) -> float:
        """Passes over the data after `step` steps."""
        epoch, index = self.place(step)
        return epoch + index / self.steps_in(epoch)

    def at(self, step: int) -> Batch:
        """The batch of step `step` (from 0)."""
        epoch, index = self.place(step)
        part = self.bins(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return self.fill(part)

    def fill(self, bins: list[list[int]]) -> Batch:
        """Bins as arrays, with empty rows up to the batch size."""
        shape = (self.batch_size, self.length)
        tokens = np.full(shape, self.pad_id, np.int32)
        targets = np.full(shape, self.pad_id, np.int32)
        weights = np.zeros(shape, np.float32)
        segments = np.zeros(shape, np.int32)
        positions = np.zeros(shape, np.int32)
        for b, members in enumerate(bins):
            at = 0
            for segment, i in enumerate(members, 1):
                ids, mask = self.dataset.row(i)
                end = at + len(ids)
                tokens[b, at:end] = ids
                targets[b, at : end - 1] = ids[1:]
                weights[b, at : end - 1] = mask[1:]
                segments[b, at:end] = segment
                positions[b, at:end] = np.arange(len(ids))
                at = end
        return Batch(tokens, targets, weights, segments, positions)

    def efficiency(self, epoch: int = 0) -> float:
        """Share of an epoch's positions that hold a token, the last batch's empty rows apart."""
        return float(self.dataset.lengths.sum()) / (len(self.bins(epoch)) * self.length)
