"""The TPU's attention kernel, run on CPU by Pallas's interpreter of TPU programs: the code that a slice runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from support import gemma
from tunewright_workloads.gemma import attention

pytestmark = pytest.mark.pipeline

HEADS, KV, SIZE = 2, 1, 128
LENGTHS = (70, 100, 60)
"""Of the examples in one row of 256 tokens; the rest is padding."""
ROW, USED = 256, sum(LENGTHS)
IDS = np.repeat(np.arange(1, 1 + len(LENGTHS), dtype=np.int32), LENGTHS)[None]


def draw(seed: int, heads: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(1, heads, USED, SIZE)).astype(np.float32) * 0.3


INPUTS = draw(0, HEADS), draw(1, KV), draw(2, KV)
OUT = draw(3, HEADS)


def slopes(
    attend: Callable[..., jax.Array], inputs: tuple[np.ndarray, ...], out: np.ndarray
) -> list[np.ndarray]:
    """The answer, and the gradients of its product with `out`."""

    def product(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = attend(*inputs)
        return jnp.sum(y * out), y

    found, y = jax.jit(jax.grad(product, argnums=(0, 1, 2), has_aux=True))(*inputs)
    return [np.asarray(x) for x in (y, *found)]


def packed(window: int | None, ids: np.ndarray) -> list[np.ndarray]:
    """All examples in one row, by the kernel."""

    def padded(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 0), (0, ROW - USED), (0, 0)))

    segments = jnp.asarray(np.pad(ids, ((0, 0), (0, ROW - USED))))
    kernel = partial(attention.attend, segments=segments, window=window, kind="splash", mesh=gemma.mesh())
    with pltpu.force_tpu_interpret_mode():
        found = slopes(kernel, tuple(map(padded, INPUTS)), padded(OUT))
    return [x[:, :, :USED] for x in found]


def alone(window: int | None) -> list[np.ndarray]:
    """Each example by itself, by the implementation for CPU; put beside each other afterwards."""
    parts = []
    for first, count in zip(np.cumsum((0, *LENGTHS[:-1])), LENGTHS, strict=True):
        *inputs, out = (x[:, :, first : first + count] for x in (*INPUTS, OUT))
        plain = partial(attention.blocks, segments=jnp.ones((1, count), jnp.int32), window=window)
        parts.append(slopes(plain, tuple(inputs), out))
    return [np.concatenate(part, 2) for part in zip(*parts, strict=True)]


@pytest.mark.parametrize("window", [None, 48])
def test_rows_packed_for_the_kernel_attend_as_their_examples_do_alone(window: int | None) -> None:
    want = alone(window)
    for got, expected in zip(packed(window, IDS), want, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    # Without the mask they do not: the row as one example.
    for got, expected in zip(packed(window, np.ones_like(IDS)), want, strict=True):
        assert np.abs(got - expected).max() > 1e-2
