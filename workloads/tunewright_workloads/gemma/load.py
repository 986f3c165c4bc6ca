"""Hugging Face safetensors -> Tunix's Gemma 4, each tensor placed in its shard as it is read.

On the host there is never more than one device's part of one tensor. Tunix's own loader is not
used: it stages all of q, k and v on the first device, crashes on checkpoints without K and V for
kv-shared layers (what transformers saves), and does not know text-only exports.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tunix.models.gemma4 import model as tunix

from tunewright_workloads.gemma import architecture, layout, names
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.checkpoint import FLOATS, Checkpoint


def sharding_config() -> tunix.ShardingConfig:
    """Tunix's own, with the norms' scales replicated: they are too small for splitting to save anything."""
    return dataclasses.replace(tunix.ShardingConfig.get_default_sharding(), rms_norm_weight=(None,))


def model_config(arch: Architecture, param_dtype: Any, compute_dtype: Any) -> tunix.ModelConfig:
    """Tunix's configuration of an architecture.

    param_dtype is what weights are stored in, compute_dtype what the matmuls run in.
    """
    kinds = (tunix.AttentionType.LOCAL_SLIDING, tunix.AttentionType.GLOBAL)
    return tunix.ModelConfig(
        num_layers=arch.layers,
        num_embed=arch.vocab,
        embed_dim=arch.embed,
        hidden_dim=arch.hidden,
        num_heads=arch.heads,
        head_dim=arch.head_dim,
        num_kv_heads=arch.local_kv_heads,
        final_logit_softcap=arch.softcap,
        sliding_window_size=arch.window,
        per_layer_input_dim=arch.ple,
        num_global_kv_heads=arch.global_kv_heads,
        global_key_size=arch.global_head_dim,
        attention_pattern=tuple(kinds[is_global] for is_global in arch.globals),
        # Half a layer more than asked for, so that Tunix's truncation cannot round to the wrong number.
        frac_shared_layers=max(0.0, arch.kv_shared_layers - 0.5) / arch.layers,
        global_rope_proportion=arch.global_proportion,
        k_eq_v_global=arch.k_eq_v,
        override_kv_shared_ffw_hidden=2 * arch.hidden if arch.wide else None,
        local_base_frequency=arch.local_theta,
        global_base_frequency=arch.global_theta,
        local_scale_factor=arch.local_factor,
        global_scale_factor=arch.global_factor,
        shd_config=sharding_config(),
        param_dtype=jnp.dtype(param_dtype),
        dtype=jnp.dtype(compute_dtype),
    )


def abstract(arch: Architecture, param_dtype: Any, compute_dtype: Any) -> tunix.Gemma4:
    """The model with shapes in place of arrays.

    kv-shared layers lose the K and V that Tunix makes and never uses, and look up the layer that
    transformers shares from.
    """

    def build() -> tunix.Gemma4:
        model = tunix.Gemma4(model_config(arch, param_dtype, compute_dtype), rngs=nnx.Rngs(0))
        for i in range(arch.unshared, arch.layers):
            attn = model.layers[i].attn
            for name in ("k_einsum", "kv_einsum", "_key_norm"):
                if hasattr(attn, name):
                    delattr(attn, name)
        model.kv_cache_sharing_patterns = [arch.origin(i) for i in range(arch.layers)]
        model.shared_layer_origins = {arch.origin(i) for i in range(arch.unshared, arch.layers)}
        return model

    return nnx.eval_shape(build)


def dotted(path: tuple[Any, ...]) -> str:
    """('layers', 0, 'attn') -> 'layers.0.attn'."""
    return ".".join(map(str, path))


def specs(model: tunix.Gemma4) -> dict[str, PartitionSpec]:
    """The partition of every parameter, by path."""
    state = nnx.state(model, nnx.Param)
    found = nnx.to_flat_state(nnx.get_partition_spec(state))
    return {dotted(path): _spec(leaf) for path, leaf in found}


def _spec(leaf: Any) -> PartitionSpec:
    value = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
    return value if isinstance(value, PartitionSpec) else PartitionSpec()


def load(directory: Path | str, *, mesh: Mesh, param_dtype: Any, compute_dtype: Any) -> tunix.Gemma4:
    """The checkpoint's text decoder on `mesh` (axes `fsdp` and `tp`).

    Every process of a multi-host mesh calls this and reads only what its own devices hold.
    Raises UserError for an architecture that cannot be run, sizes that the mesh does not divide,
    and tensors that are missing, unexpected, mis-shaped or of an unknown dtype.
    """
    directory = Path(directory)
    arch = architecture.read(directory)
    layout.check(arch, dict(mesh.shape))
    checkpoint = Checkpoint.open(directory)
    prefix = names.check(arch, checkpoint.shapes, str(directory))
    checkpoint.must_be(FLOATS, [prefix + name for name in names.tensors(arch)])
    model = abstract(arch, param_dtype, compute_dtype)
    leaves, partition = names.leaves(arch), specs(model)
    dtype = jnp.dtype(param_dtype)

    def place(path: str, shape: tuple[int, ...]) -> jax.Array:
        leaf = leaves[path]
        if leaf.shape != shape:
            raise AssertionError(f"{path}: the table says {leaf.shape}, Tunix says {shape}")

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            window = tuple(index) if index else tuple(slice(0, size) for size in shape)
            read = leaf.read(lambda name: checkpoint.source(prefix + name), window)
            return np.ascontiguousarray(read.astype(dtype, copy=False))

        return jax.make_array_from_callback(shape, NamedSharding(mesh, partition[path]), part)

    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    unknown = set(leaves) ^ {dotted(path) for path, _ in flat}
    if unknown:
        raise AssertionError(f"Tunix's parameters are not those of the table: {sorted(unknown)}")
    filled = [
        (path, variable.replace(place(dotted(path), tuple(variable.get_value().shape))))
        for path, variable in flat
    ]
    return nnx.merge(graph, nnx.from_flat_state(filled))
