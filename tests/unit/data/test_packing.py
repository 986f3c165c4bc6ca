"""Bins: every row in exactly one, none too full, and hardly any waste."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_workloads.data import packing


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.lists(st.integers(1, 64), max_size=80), st.integers(64, 100), st.integers(1, 30))
def test_every_row_is_in_exactly_one_bin_and_no_bin_is_too_full(
    lengths: list[int], capacity: int, window: int
) -> None:
    sizes = np.array(lengths, np.int64)
    bins = packing.pack(sizes, rng().permutation(len(sizes)), capacity, rng(), window)
    assert sorted(i for b in bins for i in b) == list(range(len(sizes)))
    assert all(sum(lengths[i] for i in b) <= capacity for b in bins)


def paper(count: int) -> np.ndarray:
    """Log-normal with mean 922 and 99th percentile 2553, nothing above 3072 (longer rows are dropped)."""
    z = 2.3263478740408408
    sigma = z - np.sqrt(z * z - 2 * np.log(2553 / 922))
    mu = np.log(922) - sigma**2 / 2
    drawn = np.exp(mu + sigma * rng(7).standard_normal(count)).astype(np.int64)
    assert drawn.mean() == pytest.approx(922, rel=0.03)
    assert np.percentile(drawn, 99) == pytest.approx(2553, rel=0.05)
    return drawn[(drawn > 0) & (drawn <= 3072)]


def test_at_least_97_of_100_positions_are_useful_on_the_papers_lengths() -> None:
    lengths = paper(10_000)
    bins = packing.pack(lengths, rng().permutation(len(lengths)), 3072, rng())
    assert lengths.sum() / (len(bins) * 3072) >= 0.97
    assert lengths.mean() / 3072 < 0.32  # what padding one row each would make of it


def test_bins_are_not_sorted_by_length() -> None:
    lengths = paper(4000)
    bins = packing.pack(lengths, np.arange(len(lengths)), 3072, rng())
    firsts = np.array([lengths[b[0]] for b in bins])
    assert abs(np.corrcoef(firsts, np.arange(len(firsts)))[0, 1]) < 0.2


def test_a_row_longer_than_the_bin_is_refused() -> None:
    with pytest.raises(ValueError, match="has 65 tokens, the packed row 64"):
        packing.pack(np.array([65]), [0], 64, rng())
