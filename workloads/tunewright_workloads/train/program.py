"""The jitted steps: gradients over micro batches, clipping, AdamW; and the loss alone for evaluation.

The adapter is a tree of float32 arrays, stacked as the program's scans need them (`gemma.stages`), and
the only thing that is differentiated; the frozen base is an argument, never a constant. Sums of losses and
gradients are taken over trained tokens and divided once at the end, so accumulation over micro
batches equals one batch, whatever each micro batch holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunewright_workloads.contract.configs import MeshConfig
from tunewright_workloads.data.batches import Batch, Batches
from tunewright_workloads.gemma import program, stages
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.train import mesh as meshes


class Metrics(NamedTuple):
    """Of one step: token-weighted mean loss (nats), gradient norm before clipping, trained tokens, rate."""

    loss: jax.Array
    grad_norm: jax.Array
    tokens: jax.Array
    rate: jax.Array


class Program:
    """Steps of one model on one mesh.

    base: the frozen parameters, stacked (`gemma.stages.load`). seed: of the adapters' dropout; None:
    they have none.
    """

    def __init__(self, base: Any, settings: program.Settings, mesh: Mesh, seed: int | None = None) -> None:
        self.base, self.settings, self.mesh, self.seed = base, settings, mesh, seed
        self.spread = NamedSharding(mesh, PartitionSpec(None, "fsdp", None))
        self.options = dict(program.OPTIONS) if mesh.devices.flat[0].platform == "tpu" else None

    def place(self, batch: Batch, micro: int) -> dict[str, jax.Array]:
        """A batch on the devices, [k, micro, T]; every host computes it and keeps its own rows."""
        arrays: dict[str, jax.Array] = {}
        for name, array in batch.arrays().items():
            parts = array.reshape(-1, micro, array.shape[-1])
            arrays[name] = jax.make_array_from_callback(parts.shape, self.spread, parts.__getitem__)
        return arrays

    def sum_loss(
        self, adapter: Any, base: Any, rows: Mapping[str, jax.Array], key: jax.Array | None = None
    ) -> jax.Array:
        """Summed loss of the trained tokens of rows [B, T], nats. key: of dropout, which None turns off."""
        return program.loss(adapter, base, rows, self.settings, key)[0]

    def train(
        self, optimizer: optax.GradientTransformation, rate: optax.Schedule, adapter: Any, state: Any
    ) -> Any:
        """The jitted step: (adapter, state, base, batch [k, m, T], number) -> (adapter, state, Metrics).

        number: the step's, from 0; dropout depends on it and not on where the run was resumed.
        """

        def step(adapter: Any, state: Any, base: Any, batch: Mapping[str, jax.Array], number: Any) -> Any:
            def part(rows: Mapping[str, jax.Array], i: Any) -> Any:
                key = None
                if self.seed is not None:
                    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), number), i)
                return jax.value_and_grad(self.sum_loss)(adapter, base, rows, key)

            def micro(carry: Any, item: Any) -> Any:
                return jax.tree.map(jnp.add, carry, part(*item)), None

            k = batch["tokens"].shape[0]
            if k == 1:
                loss, grads = part({name: array[0] for name, array in batch.items()}, 0)
            else:
                zero = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, adapter))
                (loss, grads), _ = jax.lax.scan(micro, zero, (batch, jnp.arange(k)))
            tokens = jnp.sum(batch["weights"])
            count = jnp.maximum(tokens, 1.0)
            grads = jax.tree.map(lambda g: g / count, grads)
            norm = optax.global_norm(grads)
            updates, state = optimizer.update(grads, state, adapter)
            return (
                optax.apply_updates(adapter, updates),
                state,
                Metrics(loss / count, norm, tokens, jnp.asarray(rate(number))),
            )

        same = jax.tree.map(lambda x: x.sharding, (adapter, state))
        every = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(
            step,
            donate_argnums=(0, 1),
            out_shardings=(*same, every),
            compiler_options=self.options,
        )

    def evaluate(self) -> Callable[..., Any]:
        """(adapter, base, batch [k, m, T]) -> (summed loss, trained tokens)."""

        def total(adapter: Any, base: Any, batch: Mapping[str, jax.Array]) -> Any:
            losses = jax.lax.map(lambda rows: self.sum_loss(adapter, base, rows), dict(batch))
            return jnp.sum(losses), jnp.sum(batch["weights"])

        every = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(total, out_shardings=every, compiler_options=self.options)


def start(optimizer: optax.GradientTransformation, adapter: Any, mesh: Mesh) -> Any:
    """The optimizer's first state: moments float32 and laid out as the parameters they belong to."""
    state = optimizer.init(adapter)
    every = NamedSharding(mesh, PartitionSpec())
    layout = optax.tree.map_params(
        optimizer, lambda _, sharding: sharding, state, jax.tree.map(lambda x: x.sharding, adapter),
        transform_non_params=lambda _: every,
    )  # fmt: skip
    return jax.device_put(state, layout)


def mean_loss(evaluate: Any, made: Program, adapter: Any, batches: Batches, micro: int) -> float:
    """Token-weighted mean loss over all batches of a data set, nats."""
    loss = tokens = 0.0
    for step in range(batches.steps_in(0)):
        arrays = made.place(batches.at(step), micro)
        part, count = evaluate(adapter, made.base, arrays)
        loss, tokens = loss + float(part), tokens + float(count)
    return loss / max(1.0, tokens)


def published_loss(
    directory: Path, arch: Architecture, batches: Batches, config: MeshConfig, dtype: str
) -> float:
    """The mean loss of a merged model on this process's devices."""
    fsdp, tp = meshes.choose(config, arch, jax.device_count(), batches.batch_size)
    mesh = Mesh(np.asarray(jax.devices()).reshape(fsdp, tp), ("fsdp", "tp"))
    with mesh:
        arch, base = stages.load(directory, mesh=mesh, dtype=dtype)
        made = Program(base, program.Settings.of(arch, None, mesh=mesh, compute_dtype=dtype), mesh)
        return mean_loss(made.evaluate(), made, None, batches, batches.batch_size)
