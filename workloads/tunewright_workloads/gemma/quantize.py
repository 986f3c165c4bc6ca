"""The frozen base in 8 or 4 bits (QLoRA): blocks of weights along the contracted axis, one scale each.

int8: a block's largest magnitude is 127. nf4: a block's values, divided by its largest magnitude, are
rounded to the sixteen quantiles of a normal distribution of QLoRA (arXiv 2305.14314, appendix E); the two
halves of a block share its bytes, so that on TPU the last axis stays as it is laid out. Only the projections of attention and MLP are quantized:
embeddings, norms and per-layer inputs stay as they are. Adapters, activations and gradients are not
touched, and a merge adds the adapter to the checkpoint's own weights.

On a mesh the codes are gathered, not the weights, and turned into weights where they are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from tunewright_workloads.contract import hbm

Kind = Literal["int8", "nf4"]

BLOCK = hbm.SCALED
"""Weights a scale; fewer where the axis is shorter."""

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


@partial(jax.tree_util.register_dataclass, data_fields=["codes", "scales"], meta_fields=["kind"])
@dataclass(frozen=True)
class Quantized:
    """codes: int8 of the weight's shape, or uint8 with half its axis -2 (nf4).

    scales: float32, the weight's shape with axis -2 (a contracted one in every projection) by blocks.
    """

    codes: jax.Array
    scales: jax.Array
    kind: Kind


def block(size: int) -> int:
    """Weights a scale on an axis of `size`."""
    return math.gcd(size, BLOCK)


def codes_shape(shape: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    return (*shape[:-2], shape[-2] // 2, shape[-1]) if kind == "nf4" else shape


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-2] // block(shape[-2]), shape[-1])


def scales(weights: np.ndarray) -> np.ndarray:
    """The largest magnitude of each block along axis -2; 1 where a block is zero."""
    size = weights.shape[-2]
    parts = weights.reshape(*weights.shape[:-2], size // block(size), block(size), weights.shape[-1])
    top = np.abs(parts.astype(np.float32)).max(-2)
    return np.where(top == 0, np.float32(1), top)


def codes(weights: np.ndarray, top: np.ndarray, kind: Kind) -> np.ndarray:
    """Codes of whole blocks with their `scales`. nf4 packs a block's halves, the first in the low bits."""
    blocks, size = top.shape[-2], weights.shape[-2] // top.shape[-2]
    values = weights.astype(np.float32) / np.repeat(top, size, axis=-2)
    if kind == "int8":
        return np.rint(values * 127).astype(np.int8)
    nearest = np.searchsorted((NF4[1:] + NF4[:-1]) / 2, values).astype(np.uint8)
    halves = nearest.reshape(*weights.shape[:-2], blocks, 2, size // 2, weights.shape[-1])
    packed = halves[..., 0, :, :] | (halves[..., 1, :, :] << 4)
    return packed.reshape(codes_shape(weights.shape, kind))


def dequantize(value: Quantized, dtype: jnp.dtype) -> jax.Array:
    """The weights that the codes stand for."""
    *outer, blocks, last = value.scales.shape
    split = value.codes.reshape(*outer, blocks, -1, last)
    if value.kind == "int8":
        parts, unit = split.astype(jnp.float32), value.scales / 127
    else:
        parts, unit = _nf4(jnp.concatenate([split & 15, split >> 4], -2)), value.scales
    return (parts * unit[..., None, :]).reshape(*outer, -1, last).astype(dtype)


def _nf4(codes: jax.Array) -> jax.Array:
    """NF4[codes], float32. By selections: a TPU looks a table of sixteen up one element after another."""
    values = [jnp.float32(value) for value in NF4]
    for bit in range(4):
        on = (codes >> bit) & 1 == 1
        values = [jnp.where(on, two, one) for one, two in zip(values[::2], values[1::2], strict=True)]
    return values[0]
