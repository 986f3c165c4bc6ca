"""The TPU's attention kernel, run on CPU by Pallas's interpreter of TPU programs: the code that a slice runs."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from support import gemma
from tunewright_workloads.gemma import attention

HEADS, KV, SIZE = 2, 1, 128
LENGTHS = (100, 156, 90)
"""Of the examples in one row of 384 tokens; the rest is padding."""
ROW = 384


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with pltpu.force_tpu_interpret_mode():
        yield


def draw(seed: int, heads: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(1, heads, sum(LENGTHS), SIZE)).astype(np.float32) * 0.3


Q, K, V, OUT = draw(0, HEADS), draw(1, KV), draw(2, KV), draw(3, HEADS)


def padded(x: np.ndarray, length: int = ROW) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0)))


def run(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray, out: np.ndarray, window: int | None
) -> tuple[np.ndarray, ...]:
    """The answer and the gradients of its product with `out`, of a row that is not padded yet."""
    used = q.shape[2]
    ids = np.pad(segments, ((0, 0), (0, ROW - used)))

    def product(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attention.attend(q, k, v, jnp.asarray(ids), window=window, kind="splash", mesh=gemma.mesh())
        return jnp.sum(y * padded(out)), y

    slopes, y = jax.grad(product, argnums=(0, 1, 2), has_aux=True)(padded(q), padded(k), padded(v))
    return tuple(np.asarray(x)[:, :, :used] for x in (y, *slopes))


def packed(window: int | None, ids: np.ndarray) -> tuple[np.ndarray, ...]:
    return run(Q, K, V, ids, OUT, window)


def alone(window: int | None) -> tuple[np.ndarray, ...]:
    """Each example in a row of its own, put beside each other afterwards."""
    parts = []
    for first, count in zip(np.cumsum((0, *LENGTHS[:-1])), LENGTHS, strict=True):
        cut = [x[:, :, first : first + count] for x in (Q, K, V, OUT)]
        parts.append(run(*cut[:3], np.ones((1, count), np.int32), cut[3], window))
    return tuple(np.concatenate(part, 2) for part in zip(*parts, strict=True))


IDS = np.repeat(np.arange(1, 1 + len(LENGTHS), dtype=np.int32), LENGTHS)[None]


@pytest.mark.parametrize("window", [None, 48])
def test_packed_rows_attend_as_their_examples_do_alone(window: int | None) -> None:
    want = alone(window)
    for got, expected in zip(packed(window, IDS), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    # Without the mask they would not: the row as one example.
    for got, expected in zip(packed(window, np.ones_like(IDS)), want, strict=True):
        assert np.abs(got - expected).max() > 1e-2


@pytest.mark.parametrize("window", [None, 48])
def test_the_kernel_computes_what_the_blocks_on_cpu_do(window: int | None) -> None:
    def product(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attention.blocks(q, k, v, jnp.asarray(IDS), window)
        return jnp.sum(y * OUT), y

    slopes, y = jax.grad(product, argnums=(0, 1, 2), has_aux=True)(Q, K, V)
    for got, expected in zip(packed(window, IDS), (y, *slopes), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
