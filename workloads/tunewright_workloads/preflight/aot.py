"""The training step of a model compiled for a slice that nobody has paid for: memory, and a modelled time.

    devices = compiler.devices("v5p", "2x2x1")
    step = trace(arch, adapter, schedule, devices, accelerator="v5p", fsdp=4, tp=1, length=5120)
    found = measure(step)

Only shapes are made: no weights, no data. It is the very step that `train` runs (`train.program`),
traced for TPU devices.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunewright_workloads.contract import accelerators
from tunewright_workloads.contract.configs import AdapterConfig, Schedule
from tunewright_workloads.gemma import attention, program, stages
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.preflight import compiler, hlo, shapes
from tunewright_workloads.train import optimizer as optimizers
from tunewright_workloads.train import remat as remats
from tunewright_workloads.train.program import Program

GIB = 2**30
FIELDS = {"tokens": jnp.int32, "targets": jnp.int32, "weights": jnp.float32, "segments": jnp.int32,
          "positions": jnp.int32}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A traced step and what is needed to read it. tokens: of a step on all devices, padding included."""

    traced: Any
    arch: Architecture
    accelerator: str
    devices: int
    rows: int
    length: int
    fsdp: int
    tp: int
    kept: str

    @property
    def tokens(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True)
class Measure:
    """What the compiler says of one step. Seconds are its model's, bytes are of one chip.

    compute:  operations and attention. exposed: transfers that nothing hides. attention: part of compute.
    mfu:      4 FLOP a parameter and token, exposed transfers included.
    """

    memory: compiler.Memory
    limit: int
    compile_seconds: float
    compute: float
    attention: float
    exposed: float
    network: float
    matmul: float
    tokens: int
    devices: int
    mfu: float
    traffic: dict[str, tuple[int, float]]
    top: list[tuple[float, str]]

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed

    @property
    def share(self) -> float:
        """Of the chip's memory."""
        return self.memory.peak / self.limit

    def per_thousand(self, useful: float, exposed: bool = True) -> float:
        """Seconds for 1,000 useful tokens. useful: share of the tokens that train anything."""
        return (self.seconds if exposed else self.compute) / (self.tokens * useful) * 1000


def mesh(devices: list[Any], fsdp: int, tp: int) -> Mesh:
    return Mesh(np.array(devices).reshape(fsdp, tp), ("fsdp", "tp"))


def trace(
    arch: Architecture,
    adapter: AdapterConfig,
    schedule: Schedule,
    devices: list[Any],
    *,
    accelerator: str,
    fsdp: int,
    tp: int,
    length: int,
    kept: str | tuple[str, ...] | None = None,
    steps: int = 1000,
    unroll: int | None = None,
) -> Step:
    """The step of `schedule` over packed rows of `length` tokens, in bfloat16 with float32 adapters.

    kept: of the activations; None: what `train` would keep.
    """
    where = mesh(devices, fsdp, tp)
    micro = schedule.micro_batch_size or schedule.global_batch_size
    if kept is None:
        kept = remats.kept(
            schedule, adapter, arch, kind=accelerator, fsdp=fsdp, tp=tp, tokens=micro // fsdp * length
        )
    settings = program.Settings.of(arch, adapter, mesh=where, compute_dtype=jnp.bfloat16, remat=kept)  # type: ignore[arg-type]
    if unroll is not None:
        settings = dataclasses.replace(settings, unroll=unroll)
    base = stages.shapes(arch, where, jnp.bfloat16, adapter.quantize_base)
    lora = stages.adapter_shapes(arch, adapter, where)
    optimizer = optimizers.make(schedule, steps)
    state = _state(optimizer, lora, where)
    rows = schedule.global_batch_size
    spread = NamedSharding(where, PartitionSpec(None, "fsdp", None))
    batch = {
        name: jax.ShapeDtypeStruct((rows // micro, micro, length), kind, sharding=spread)
        for name, kind in FIELDS.items()
    }
    seed = schedule.seed if adapter.dropout else None
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(where, PartitionSpec()))
    with where:
        made = Program(base, settings, where, seed)
        traced = made.train(optimizer, optimizers.schedule(schedule, steps), lora, state).trace(
            lora, state, base, batch, number
        )
    return Step(
        traced, arch, accelerator, len(devices), rows, length, fsdp, tp,
        kept if isinstance(kept, str) else ",".join(kept) or "nothing",
    )  # fmt: skip


def _state(optimizer: optax.GradientTransformation, lora: Any, where: Mesh) -> Any:
    """Shapes of the optimizer's state, moments laid out as the parameters they belong to."""
    every = NamedSharding(where, PartitionSpec())
    state = jax.eval_shape(optimizer.init, lora)
    return optax.tree.map_params(
        optimizer,
        lambda x, like: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=like.sharding),
        state,
        lora,
        transform_non_params=lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=every),
    )


def measure(step: Step) -> Measure:
    """Compiles the step. Raises compiler.TooLarge when its temporaries alone exceed the memory."""
    compiled = compiler.compile_(step.traced)
    return reading(compiled, step.arch, step.accelerator, step.devices, step.tokens, step.length)


def reading(
    compiled: compiler.Compiled,
    arch: Architecture,
    accelerator: str,
    devices: int,
    tokens: int,
    length: int,
    block: Callable[[int, int | None], int] | None = None,
) -> Measure:
    """One and the same reading for every program that is compared.

    block: of its attention kernel, by row length and window; None: ours.
    """
    chip = accelerators.ACCELERATORS[accelerator]
    spent = 0.0

    def one(kernel: hlo.Kernel) -> float:
        return attention_flops(kernel, arch, length, block or attention.block) / chip.peak_flops

    cost = hlo.read(compiled.text, compiler.RATES[accelerator], one)
    spent = sum(one(kernel) * kernel.calls for kernel in cost.kernels)
    compute = cost.compute + spent
    useful = 4 * shapes.parameters(arch) * tokens / devices / chip.peak_flops
    return Measure(
        memory=compiled.memory,
        limit=int(chip.hbm_gib * GIB / chip.devices_per_chip),
        compile_seconds=compiled.seconds,
        compute=compute,
        attention=spent,
        exposed=cost.exposed,
        network=cost.network,
        matmul=cost.matmul,
        tokens=tokens,
        devices=devices,
        mfu=useful / (compute + cost.exposed),
        traffic=cost.traffic,
        top=cost.top,
    )


_MATMULS = (("dkv", 4), ("dq", 3), ("fwd", 2))
"""Matmuls of a block of queries with a block of keys: q k' and p v forward; backward without fusion q k'
in both kernels, then dv, dp, dk and dp, dq."""


def attention_flops(
    kernel: hlo.Kernel,
    arch: Architecture,
    length: int,
    block: Callable[[int, int | None], int] = attention.block,
) -> float:
    """Of one call of a splash kernel: every visited block in full, as the kernel computes it."""
    count = next(
        (n for word, n in _MATMULS if re.search(rf"splash\w*{word}|{word}\w*splash", kernel.name)), None
    )
    if count is None:
        raise ValueError(f"a Pallas kernel of unknown cost: {kernel.name}")
    # Outputs are [rows, heads, T, h], [heads, T, h] or the like; dk and dv have the fewer heads of K and V.
    big = [s for s in kernel.outputs if len(s) >= 3 and s[-1] in (arch.head_dim, arch.global_head_dim)]
    if not big:
        raise ValueError(f"a splash kernel without an output of heads: {kernel.name} {kernel.outputs}")
    shape = max(big, key=lambda s: int(np.prod(s)))
    is_global = shape[-1] == arch.global_head_dim
    window = None if is_global else arch.window
    heads = int(np.prod(shape[:-2]))
    if count == 4:
        heads *= arch.heads // (arch.global_kv_heads if is_global else arch.local_kv_heads)
    return count * 2.0 * heads * visited(length, window, block(length, window)) * shape[-1]


def visited(length: int, window: int | None, size: int) -> int:
    """Elements of the blocks that a causal (and local) mask leaves, of T x T."""
    blocks = 0
    for i in range(length // size):
        for j in range(i + 1):
            if window is None or (j + 1) * size - 1 >= i * size - window + 1:
                blocks += 1
    return blocks * size * size
