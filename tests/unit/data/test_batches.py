"""Batches by step: the same on every restart, every row once an epoch, nothing across examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.rows import assistant, build, chat, user, write
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.data.dataset import Dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows = [chat(user("q " * (i % 7)), assistant(f"Answer {i}" + " and more" * (i % 5))) for i in range(50)]
    return build(write(tmp_path_factory.mktemp("data") / "train.jsonl", *rows))


def make(data: Dataset, **more: object) -> Batches:
    return Batches(data, **{"batch_size": 4, "max_length": 128, "seed": 3, **more})  # type: ignore[arg-type]


def examples(batches: Batches, step: int) -> list[tuple[int, ...]]:
    """The examples in a batch, as their tokens."""
    batch = batches.at(step)
    found = []
    for tokens, segments in zip(batch.tokens, batch.segments, strict=True):
        found += [tuple(tokens[segments == s].tolist()) for s in range(1, segments.max() + 1)]
    return found


@pytest.mark.parametrize("packing", [True, False])
def test_every_row_comes_once_an_epoch_and_in_another_order_the_next(data: Dataset, packing: bool) -> None:
    batches = make(data, packing=packing)
    steps = batches.steps_in(0)
    first = [e for s in range(steps) for e in examples(batches, s)]
    second = [e for s in range(steps, steps + batches.steps_in(1)) for e in examples(batches, s)]
    rows = sorted(tuple(data.row(i)[0].tolist()) for i in range(len(data)))
    assert sorted(first) == rows
    assert sorted(second) == rows
    assert first != second


@pytest.mark.parametrize("packing", [True, False])
def test_a_step_has_the_same_batch_whoever_asks_and_in_whatever_order(data: Dataset, packing: bool) -> None:
    one, other = make(data, packing=packing), make(data, packing=packing)
    later = [other.at(s) for s in (9, 2, 5)]
    for step, batch in zip((9, 2, 5), later, strict=True):
        for name, array in one.at(step).arrays().items():
            assert np.array_equal(array, batch.arrays()[name])


def test_another_seed_is_another_order(data: Dataset) -> None:
    assert examples(make(data), 0) != examples(make(data, seed=4), 0)


def test_targets_are_the_next_token_of_the_same_example_and_positions_restart(data: Dataset) -> None:
    batch = make(data).at(0)
    assert batch.segments.max() > 1
    for b in range(4):
        for s in range(1, batch.segments[b].max() + 1):
            (at,) = np.nonzero(batch.segments[b] == s)
            assert np.array_equal(at, np.arange(at[0], at[-1] + 1))
            assert np.array_equal(batch.positions[b, at], np.arange(len(at)))
            assert np.array_equal(batch.targets[b, at[:-1]], batch.tokens[b, at[1:]])
            assert batch.weights[b, at[-1]] == 0
    assert not batch.weights[batch.segments == 0].any()


def test_hosts_feed_parts_of_one_batch(data: Dataset) -> None:
    batch = make(data).at(1)
    halves = [batch.rows(slice(0, 2)), batch.rows(slice(2, 4))]
    assert np.array_equal(np.concatenate([h.tokens for h in halves]), batch.tokens)


def test_trained_tokens_of_all_batches_are_those_of_the_dataset(data: Dataset) -> None:
    batches = make(data)
    assert sum(batches.at(s).trained for s in range(batches.steps_in(0))) == data.trained
    assert sum(batches.at(s).useful for s in range(batches.steps_in(0))) == data.lengths.sum()


def test_rows_are_padded_to_the_longest_and_not_to_the_maximum(data: Dataset) -> None:
    assert make(data, packing=False, max_length=2048).length == -(-data.lengths.max() // 16) * 16
    assert make(data, max_length=128).length == 128


@pytest.mark.parametrize(("epochs", "share"), [(1, 1.0), (2, 2.0), (0.5, 0.5), (2.5, 2.5)])
def test_steps_of_epochs(data: Dataset, epochs: float, share: float) -> None:
    batches = make(data)
    assert batches.steps(epochs) == pytest.approx(share * batches.steps_in(0), abs=2)
    assert batches.epoch(batches.steps(epochs)) == pytest.approx(epochs, abs=0.2)


def test_a_dataset_smaller_than_a_batch_is_filled_with_rows_that_weigh_nothing(tmp_path: Path) -> None:
    small = build(write(tmp_path / "a.jsonl", chat()))
    batches = make(small, batch_size=4)
    assert batches.steps_in(0) == 1
    batch = batches.at(5)
    assert batch.tokens.shape[0] == 4
    assert not batch.segments[1:].any()


@pytest.mark.parametrize("packing", [True, False])
def test_rows_are_as_long_as_the_accelerator_needs_them(packing: bool, tmp_path: Path) -> None:
    """Also where the whole data set is short: a TPU's attention kernel has no block for 16 or 48 tokens."""
    few = build(write(tmp_path / "few.jsonl", *(chat(user("q"), assistant("Answer." * i)) for i in (1, 2))))
    assert make(few, packing=packing, max_length=512).length % 128
    made = make(few, packing=packing, max_length=512, lanes=128)
    assert made.length == 128 == made.at(0).tokens.shape[1]
