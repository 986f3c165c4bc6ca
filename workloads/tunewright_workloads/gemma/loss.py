"""Cross entropy over a large vocabulary without its logits: chunk by chunk, with the gradient on the way.

The [B, T, V] float32 logits of a 262,144-token vocabulary are 1 GB for a thousand tokens. Here a
chunk of positions at a time is projected, and the gradient with respect to the hidden states is
computed at once, in the forward pass: logits are neither stored nor computed again (4 instead of 6
V x D FLOP a token, as the head is frozen).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

CHUNK = 512
"""Positions a chunk, of each row."""


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def cross_entropy(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    softcap: float | None,
    chunk: int,
) -> jax.Array:
    """Sum over positions of weight times cross entropy, nats, float32.

    hidden [B, T, D]; head [V, D] in hidden's dtype, not differentiated; targets [B, T]; weights [B, T].
    softcap: logits are softcap * tanh(logits / softcap); None: as they are.
    """
    return _scan(hidden, head, targets, weights, softcap, chunk, gradient=False)[0]


def _forward(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    softcap: float | None,
    chunk: int,
) -> tuple[jax.Array, tuple[jax.Array]]:
    total, change = _scan(hidden, head, targets, weights, softcap, chunk, gradient=True)
    return total, (change,)


def _backward(
    softcap: float | None, chunk: int, kept: tuple[jax.Array], upstream: jax.Array
) -> tuple[Any, ...]:
    (change,) = kept
    return (change * upstream.astype(change.dtype)), None, None, None


cross_entropy.defvjp(_forward, _backward)


def _scan(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    softcap: float | None,
    chunk: int,
    gradient: bool,
) -> tuple[jax.Array, jax.Array]:
    B, T, D = hidden.shape
    chunk = min(chunk, T)
    count = -(-T // chunk)
    weights = weights.astype(jnp.float32)

    def split(x: jax.Array) -> jax.Array:
        pad = [(0, 0), (0, count * chunk - T)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, pad) if count * chunk > T else x
        return jnp.moveaxis(x.reshape(B, count, chunk, *x.shape[2:]), 1, 0)

    def part(total: jax.Array, item: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
        x, target, weight = item
        raw = jnp.einsum("btd,vd->btv", x, head).astype(jnp.float32)
        bent = raw if softcap is None else jnp.tanh(raw / softcap)
        logits = bent if softcap is None else bent * softcap
        top = logits.max(-1, keepdims=True)
        powers = jnp.exp(logits - top)
        mass = powers.sum(-1, keepdims=True)
        hot = target[..., None] == lax.broadcasted_iota(target.dtype, (1, 1, head.shape[0]), 2)
        hit = jnp.where(hot, logits, 0).sum(-1)
        total += ((jnp.log(mass[..., 0]) + top[..., 0] - hit) * weight).sum()
        if not gradient:
            return total, None
        slope = (powers / mass - hot) * weight[..., None]
        if softcap is not None:
            slope *= 1 - bent * bent
        return total, jnp.einsum("btv,vd->btd", slope.astype(x.dtype), head)

    items = (split(hidden), split(targets), split(weights))
    start = jnp.zeros((), jnp.float32)
    if count == 1:
        total, change = part(start, tuple(item[0] for item in items))
        return total, change if gradient else start
    total, change = lax.scan(part, start, items)
    if not gradient:
        return total, start
    return total, jnp.moveaxis(change, 0, 1).reshape(B, count * chunk, D)[:, :T]
