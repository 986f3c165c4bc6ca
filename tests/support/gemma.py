"""Tiny checkpoints, a mesh of this machine's first devices, and forwards of both implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = ("dense", "ple")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options that halve the time to compile for CPU; only the speed of the result suffers."""


def mesh(fsdp: int = 1, tp: int = 1) -> Any:
    """A mesh of the first fsdp * tp devices."""
    import jax

    devices = np.array(jax.devices()[: fsdp * tp]).reshape(fsdp, tp)
    return jax.sharding.Mesh(devices, ("fsdp", "tp"))


def tokens(rows: int, length: int, vocab: int = 1024, seed: int = 0) -> np.ndarray:
    """Random ordinary tokens after a <bos>."""
    drawn = np.random.default_rng(seed).integers(24, vocab, (rows, length)).astype(np.int32)
    drawn[:, 0] = 2
    return drawn


def tunix_logits(model: Any, ids: np.ndarray, on: Any) -> np.ndarray:
    """Logits [B, T, V] of a Tunix model under a causal mask."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    B, T = ids.shape
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    graph, state = nnx.split(model)
    with jax.set_mesh(on) if on.size > 1 else on:
        forward = jax.jit(
            lambda state, ids: nnx.merge(graph, state)(ids, positions, None, mask)[0], compiler_options=QUICK
        )
        return np.asarray(forward(state, jnp.asarray(ids)))


def reference(directory: Path) -> Any:
    """transformers' model of a checkpoint, f32, on CPU; fails when a key is missing or unexpected."""
    import json

    import torch
    import transformers

    name = json.loads((directory / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, name).from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    return model.eval()


def reference_logits(directory: Path, ids: np.ndarray) -> np.ndarray:
    """transformers' logits [B, T, V]."""
    import torch

    with torch.no_grad():
        return reference(directory)(input_ids=torch.tensor(ids, dtype=torch.long)).logits.numpy()


def packed(rows: int, length: int, seed: int = 0, longest: int = 50) -> dict[str, np.ndarray]:
    """Rows of several examples with padding at the end, [B, T] each, as the trainer packs them."""
    draw = np.random.default_rng(seed)
    arrays = {
        name: np.zeros((rows, length), np.int32) for name in ("tokens", "targets", "segments", "positions")
    }
    arrays["weights"] = np.zeros((rows, length), np.float32)
    for row in range(rows):
        at, segment = 0, 0
        while (size := int(draw.integers(5, longest))) + at <= length:
            segment += 1
            here = slice(at, at + size)
            ids = np.concatenate([[2], draw.integers(24, 1024, size)])
            arrays["tokens"][row, here], arrays["targets"][row, here] = ids[:-1], ids[1:]
            arrays["segments"][row, here] = segment
            arrays["positions"][row, here] = np.arange(size)
            arrays["weights"][row, here] = draw.random(size) < 0.6
            at += size
    return arrays


def plain_loss(model: Any, batch: Any, compute_dtype: Any = "float32") -> Any:
    """A function of the adapter's tree: the summed loss by Tunix's modules, full mask and full logits."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    graph, own, rest = nnx.split(model, nnx.LoRAParam, ...)
    segments = jnp.asarray(batch["segments"])
    T = segments.shape[-1]
    mask = jnp.tril(jnp.ones((T, T), bool)) & (segments[:, :, None] == segments[:, None, :])

    def total(tree: Any) -> Any:
        flat = []
        for path, variable in nnx.to_flat_state(own):
            value = tree
            for part in path:
                value = value[str(part)]
            flat.append((path, variable.replace(value.astype(compute_dtype))))
        out, _ = nnx.merge(graph, nnx.from_flat_state(flat), rest)(
            jnp.asarray(batch["tokens"]), jnp.asarray(batch["positions"]), None, mask
        )
        each = optax.softmax_cross_entropy_with_integer_labels(
            out.astype(jnp.float32), jnp.asarray(batch["targets"])
        )
        return jnp.sum(each * batch["weights"])

    return jax.jit(jax.value_and_grad(total), compiler_options=QUICK)
