"""Matmuls with frozen weights that are split over `fsdp`, their transfer hidden under the multiplication.

A gather of the weight would have to end before the matmul starts: on v5p `all-gather` runs alone. A
permute does not: here the parts of the weight go round in a ring, and each device multiplies with the
part at hand while the next one comes in. Every weight is split along the model's width D:

* D is summed over (projections out of the residual): one partial product for each part, summed in float32;
* D is what comes out (projections back into the residual): one block of columns for each part.

Each is the other's gradient, and weights have none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

P = PartitionSpec

AXIS = "fsdp"


def fits(mesh: Mesh | None) -> bool:
    """Whether the mesh has a ring: weights split over fsdp and over nothing else."""
    return mesh is not None and mesh.shape[AXIS] > 1 and mesh.size == mesh.shape[AXIS]


@partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def matmul(formula: str, x: jax.Array, w: jax.Array, mesh: Mesh) -> jax.Array:
    """einsum(formula, x, w) in x's dtype, w not differentiated.

    formula: one letter an axis; b is x's and the result's first axis and split over fsdp, d is the model's
    width, whole in x or the result and split over fsdp in w. "btd,df->btf", "bnth,nhd->btd".
    """
    return _split(formula, x, w, mesh)


def _forward(formula: str, x: jax.Array, w: jax.Array, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    return _split(formula, x, w, mesh), w


def _backward(formula: str, mesh: Mesh, w: jax.Array, upstream: jax.Array) -> tuple[Any, None]:
    (x, weight), out = _letters(formula)
    return _split(f"{out},{weight}->{x}", upstream, w, mesh), None


matmul.defvjp(_forward, _backward)


def _letters(formula: str) -> tuple[list[str], str]:
    left, out = formula.split("->")
    return left.split(","), out


def _split(formula: str, x: jax.Array, w: jax.Array, mesh: Mesh) -> jax.Array:
    (left, weight), out = _letters(formula)
    if left[0] != "b" or out[0] != "b" or weight.count("d") != 1 or (left + out).count("d") != 1:
        raise ValueError(f"no formula of a ring: {formula}")
    order = cycle(list(mesh.devices.flat))
    return jax.shard_map(
        partial(_turn, formula, order),
        mesh=mesh,
        in_specs=(P(AXIS), P(*(AXIS if letter == "d" else None for letter in weight))),
        out_specs=P(AXIS),
        check_vma=False,
    )(x, w)


def _turn(formula: str, order: tuple[int, ...], x: jax.Array, w: jax.Array) -> jax.Array:
    """One device's part. order: mesh positions along the ring."""
    (left, weight), out = _letters(formula)
    n = len(order)
    onwards = [(order[k], order[(k + 1) % n]) for k in range(n)]
    place = {device: k for k, device in enumerate(order)}
    # Which part a device has at each turn.
    table = np.array([[order[(place[i] - turn) % n] for turn in range(n)] for i in range(n)], np.int32)
    mine = jnp.asarray(table)[lax.axis_index(AXIS)]
    width = w.shape[weight.index("d")]
    summed = "d" in left
    result: Any = None
    for turn in range(n):
        coming = lax.ppermute(w, AXIS, onwards) if turn + 1 < n else None
        start = mine[turn] * width
        if summed:
            part = lax.dynamic_slice_in_dim(x, start, width, left.index("d"))
            product = jnp.einsum(formula, part, w, preferred_element_type=jnp.float32)
            result = product if result is None else result + product
        else:
            product = jnp.einsum(formula, x, w).astype(x.dtype)
            if result is None:
                shape = list(product.shape)
                shape[out.index("d")] = n * width
                result = lax.empty(tuple(shape), x.dtype)  # every block of columns is written
            result = lax.dynamic_update_slice_in_dim(result, product, start, out.index("d"))
        w = coming if coming is not None else w
    return result.astype(x.dtype)


def cycle(devices: list[Any]) -> tuple[int, ...]:
    """An order of the devices in which each is the next one's neighbour, where their coordinates allow it.

    A transfer then takes one link and nobody else's. Without coordinates (CPU), or for slices too large
    to search, the order that they come in.
    """
    n = len(devices)
    natural = tuple(range(n))
    coords: list[tuple[int, ...]] = [getattr(device, "coords", ()) for device in devices]
    if n > 16 or not all(coords):
        return natural

    def apart(i: int, j: int) -> int:
        return sum(abs(a - b) for a, b in zip(coords[i], coords[j], strict=True))

    def extend(path: list[int]) -> list[int] | None:
        if len(path) == n:
            return path if apart(path[-1], path[0]) == 1 else None
        for k in natural:
            if k not in path and apart(path[-1], k) == 1 and (found := extend([*path, k])):
                return found
        return None

    return tuple(extend([0]) or natural)
