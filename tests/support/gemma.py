"""Tiny checkpoints, a mesh of this machine's first devices, and forwards of both implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = ("dense", "ple")


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
        forward = jax.jit(lambda state, ids: nnx.merge(graph, state)(ids, positions, None, mask)[0])
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
