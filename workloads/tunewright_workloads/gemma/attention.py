"""Causal attention over packed rows: within one segment, and within the window of sliding layers.

Two implementations of one function. On TPU a splash kernel with segment ids and static causal or
local masks; elsewhere query blocks one after another, recomputed in the backward pass, so that no
T x T array exists for long rows. Tunix's flash path is not used: it ignores the attention mask
(packed rows would see each other) and its default block does not compile for heads of 512.

Queries and keys are normalised before, so there is no 1/sqrt(h).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Kind = Literal["splash", "blocks"]

MASKED = -2.3819763e38
"""What Tunix and Gemma put in place of a masked logit: finite, so that an all-masked row is no NaN."""

BLOCK = 512
"""Queries a block where T is longer."""


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    *,
    window: int | None,
    kind: Kind,
    mesh: Mesh | None,
) -> jax.Array:
    """q [B, N, T, h], k and v [B, K, T, h] with N a multiple of K, segments [B, T] -> [B, N, T, h].

    window: None for global layers; otherwise a query sees itself and the window - 1 positions before it.
    mesh:   its axes `fsdp` (rows) and `tp` (heads) are what the splash kernel is split over.
    """
    if kind == "splash":
        assert mesh is not None
        return splash(q, k, v, segments, window, mesh)
    return blocks(q, k, v, segments, window)


def blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int | None, size: int = BLOCK
) -> jax.Array:
    """Attention by blocks of `size` queries: memory is size x T for global layers, size x (size + window) else."""
    B, N, T, h = q.shape
    K = k.shape[1]
    q = q.reshape(B, K, N // K, T, h)

    if size >= T:
        return _block(q, k, v, segments, segments, 0, 0, window).reshape(B, N, T, h)

    count = -(-T // size)
    tail = count * size - T
    # Keys before the first block, so that every block reads a slice of one length.
    lead = 0 if window is None else min(window - 1, T)
    length = count * size if window is None else size + lead
    q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, tail), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (lead, tail), (0, 0))) for x in (k, v))
    own = jnp.pad(segments, ((0, 0), (0, tail)), constant_values=-1)
    theirs = jnp.pad(segments, ((0, 0), (lead, tail)), constant_values=-1)

    @jax.checkpoint
    def one(i: jax.Array) -> jax.Array:
        start = i * size
        # Padded index of the first key is start (its true index start - lead) in windows, 0 else.
        first = jnp.int32(0) if window is None else start
        cut = lambda x, at, n, axis: lax.dynamic_slice_in_dim(x, at, n, axis)  # noqa: E731
        return _block(
            cut(q, start, size, 3),
            cut(k, first, length, 2),
            cut(v, first, length, 2),
            cut(own, start, size, 1),
            cut(theirs, first, length, 1),
            start,
            first - lead,
            window,
        )

    out = lax.map(one, jnp.arange(count))  # [count, B, K, G, size, h]
    out = jnp.moveaxis(out, 0, 3).reshape(B, N, count * size, h)
    return out[:, :, :T]


def _block(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    own: jax.Array,
    theirs: jax.Array,
    start: jax.Array | int,
    first: jax.Array | int,
    window: int | None,
) -> jax.Array:
    """One block: q [B, K, G, t, h] at positions start.., keys at positions first.."""
    logits = jnp.einsum("bkgth,bksh->bkgts", q, k, preferred_element_type=jnp.float32)
    distance = (start + jnp.arange(q.shape[3]))[:, None] - (first + jnp.arange(k.shape[2]))[None, :]
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    mask = seen[None] & (own[:, :, None] == theirs[:, None, :])
    logits = jnp.where(mask[:, None, None], logits, MASKED)
    return jnp.einsum("bkgts,bksh->bkgth", jax.nn.softmax(logits, axis=-1).astype(v.dtype), v)


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int | None, mesh: Mesh
) -> jax.Array:
    """The TPU kernel, rows split over `fsdp` and heads over `tp`.

    Block sizes are those that compile with 48 MiB of scoped VMEM and were the fastest by the
    compiler's model: 512 for windows (a larger block visits more masked positions), 1024 with
    computing blocks of 512 for global layers. The backward pass is the unfused one: the fused one
    writes one dq for each block of keys and sums them afterwards.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, N, T, _ = q.shape
    shape = (T, T)
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), 0)
    size = block(T, window)
    inner = min(size, 512)
    sizes = kernels.BlockSizes(
        block_q=size,
        block_kv=size,
        block_kv_compute=inner,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_kv_dkv_compute=inner,
        block_q_dq=size,
        block_kv_dq=size,
    )
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * N),
        block_sizes=sizes,
        head_shards=mesh.shape["tp"],
        q_seq_shards=1,
        residual_checkpoint_name="attn",
    )
    heads = P("fsdp", "tp", None, None)

    def rows(kernel: object, q: jax.Array, k: jax.Array, v: jax.Array, s: jax.Array) -> jax.Array:
        def row(q: jax.Array, k: jax.Array, v: jax.Array, s: jax.Array) -> jax.Array:
            return kernel(q, k, v, segment_ids=kernels.SegmentIds(s, s))  # type: ignore[operator]

        return jax.vmap(row)(q, k, v, s)

    spec = kernel.manual_sharding_spec(NamedSharding(mesh, P("tp", None)))
    split = jax.shard_map(
        rows,
        mesh=mesh,
        in_specs=(spec, heads, heads, heads, P("fsdp", None)),
        out_specs=heads,
        check_vma=False,
    )
    return split(kernel, q, k, v, segments)


def block(length: int, window: int | None) -> int:
    """The kernel's block of queries and of keys."""
    return block_of(length, 1024 if window is None else 512)


def block_of(length: int, most: int) -> int:
    """The largest block up to `most` that divides a row and is a multiple of the TPU's 128 lanes.

    Raises ValueError for lengths without one.
    """
    for size in range(min(most, length), 127, -128):
        if size % 128 == 0 and length % size == 0:
            return size
    raise ValueError(f"rows of {length} tokens have no block: on TPU the length must be a multiple of 128")
