"""The layers of a Gemma 4 as a few scans: which layers repeat, and their parameters stacked.

A stage is `count` repetitions of a pattern of layers (31B: ten times five local and one global).
Parameters are stacked by position in the pattern, so that a repetition takes one slice of each:
leading axis `count`, then the shape that Tunix has. Adapters keep Qwix's leaf names below that, and
`unstack` gives back the tree that checkpoints hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.gemma import architecture, layout, lora, names, quantize
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.checkpoint import FLOATS, Checkpoint

Tree = dict[str, Any]
Quantization = Literal["none", "int8", "nf4"]
P = PartitionSpec


@dataclass(frozen=True)
class Stage:
    """`count` repetitions of `period` layers, the first of them `first`."""

    first: int
    count: int
    period: int

    def layer(self, repetition: int, position: int) -> int:
        return self.first + repetition * self.period + position

    def layers(self, position: int) -> list[int]:
        """The layers at one position of the pattern, one a repetition."""
        return [self.layer(r, position) for r in range(self.count)]


def stages(arch: Architecture) -> list[Stage]:
    """The scans of an architecture, in order.

    The last pattern before kv-shared layers is a stage of its own: its K and V are handed on.
    Layers without a repeating pattern become one stage of one repetition.
    """
    result: list[Stage] = []
    for first, last in ((0, arch.unshared), (arch.unshared, arch.layers)):
        kinds = arch.globals[first:last]
        if not kinds:
            continue
        n = len(kinds)
        period = next(
            p for p in range(1, n + 1) if n % p == 0 and all(kinds[i] == kinds[i % p] for i in range(n))
        )
        count = n // period
        if first == 0 and arch.kv_shared_layers:
            # Both kinds of layer are in the pattern, as `architecture` has checked that each has an origin.
            if count > 1:
                result.append(Stage(0, count - 1, period))
            result.append(Stage((count - 1) * period, 1, period))
        else:
            result.append(Stage(first, count, period))
    return result


_SPECS: dict[str, PartitionSpec] = {
    "embedder.input_embedding": P("tp", "fsdp"),
    "embedder.per_layer_input_embedding": P("tp", None, "fsdp"),
    "embedder.per_layer_model_projection.w": P("fsdp", None, "tp"),
    "attn.q_einsum.w": P("tp", "fsdp", None),
    "attn.k_einsum.w": P("tp", "fsdp", None),
    "attn.v_einsum.w": P("tp", "fsdp", None),
    "attn.attn_vec_einsum.w": P("tp", None, "fsdp"),
    "mlp.gate_proj.kernel": P("fsdp", "tp"),
    "mlp.up_proj.kernel": P("fsdp", "tp"),
    "mlp.down_proj.kernel": P("tp", "fsdp"),
    "per_layer_input_gate.w": P("fsdp", "tp"),
    "per_layer_projection.w": P("tp", "fsdp"),
}
"""How weights are stored; norms and scales, which are not here, are replicated."""


@dataclass(frozen=True)
class Weight:
    """One array of the base: its shape, its partition, and how a part of it is read."""

    shape: tuple[int, ...]
    spec: PartitionSpec
    read: Callable[[Callable[[str], names.Source], tuple[slice, ...]], np.ndarray]
    projection: bool = False
    """Whether it may be quantized: a projection of attention or MLP."""


def weights(arch: Architecture) -> Tree:
    """The base as a tree of `Weight`: {"embedder.input_embedding": ..., "stages": [[{name: ...}]]}.

    Names are Tunix's, without the layer; the fused K and V of local layers are `attn.k_einsum.w`
    and `attn.v_einsum.w`.
    """
    leaves = names.leaves(arch)
    top: Tree = {
        path: Weight(leaf.shape, _SPECS.get(path, P()), leaf.read)
        for path, leaf in leaves.items()
        if not path.startswith("layers.")
    }
    top["stages"] = []
    for stage in stages(arch):
        positions = []
        for position in range(stage.period):
            layers = stage.layers(position)
            here: dict[str, Weight] = {}
            for name in _of_layer(leaves, layers[0]):
                stack = [leaves[f"layers.{i}.{name}"] for i in layers]
                if name == "attn.kv_einsum.w":
                    for half, own in enumerate(("attn.k_einsum.w", "attn.v_einsum.w")):
                        here[own] = _stacked(stack, own, half)
                else:
                    here[name] = _stacked(stack, name)
            positions.append(here)
        top["stages"].append(positions)
    return top


def _of_layer(leaves: Mapping[str, names.Leaf], layer: int) -> list[str]:
    before = f"layers.{layer}."
    return [path.removeprefix(before) for path in leaves if path.startswith(before)]


def _stacked(stack: Sequence[names.Leaf], name: str, half: int | None = None) -> Weight:
    shape = stack[0].shape if half is None else stack[0].shape[1:]

    def read(get: Callable[[str], names.Source], index: tuple[slice, ...]) -> np.ndarray:
        chosen, inner = stack[index[0]], index[1:]
        if half is None:
            return np.stack([leaf.read(get, inner) for leaf in chosen])
        return np.stack([leaf.read(get, (slice(half, half + 1), *inner))[0] for leaf in chosen])

    projection = name in _SPECS and name.startswith(("attn.", "mlp."))
    return Weight((len(stack), *shape), P(None, *_SPECS.get(name, P())), read, projection)


def shapes(arch: Architecture, mesh: Mesh, dtype: Any, quantized: Quantization = "none") -> Tree:
    """The base as shapes with shardings, for compiling without weights."""

    def shape(dims: tuple[int, ...], kind: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.dtype(kind), sharding=NamedSharding(mesh, spec))

    def of(weight: Weight) -> Any:
        if quantized == "none" or not weight.projection:
            return shape(weight.shape, dtype, weight.spec)
        codes = shape(
            quantize.codes_shape(weight.shape, quantized),
            jnp.int8 if quantized == "int8" else jnp.uint8,
            weight.spec,
        )
        scales = shape(quantize.scales_shape(weight.shape), jnp.float32, _scales_spec(weight))
        return quantize.Quantized(codes, scales, quantized)  # type: ignore[arg-type]

    return jax.tree.map(of, weights(arch), is_leaf=lambda x: isinstance(x, Weight))


def _scales_spec(weight: Weight) -> PartitionSpec:
    """The weight's own, but whole along the blocks: they need not divide as the weights do."""
    spec = [*weight.spec, *[None] * (len(weight.shape) - len(weight.spec))]
    spec[-2] = None
    return P(*spec)


def load(
    directory: Path | str, *, mesh: Mesh, dtype: Any, quantized: Quantization = "none"
) -> tuple[Architecture, Tree]:
    """A checkpoint's base, stacked, each device's part read by itself.

    quantized: store the projections in int8 or nf4; every device reads the blocks that its part touches.
    Raises UserError as `gemma.load.load` does.
    """
    directory = Path(directory)
    arch = architecture.read(directory)
    layout.check(arch, dict(mesh.shape))
    checkpoint = Checkpoint.open(directory)
    prefix = names.check(arch, checkpoint.shapes, str(directory))
    checkpoint.must_be(FLOATS, [prefix + name for name in names.tensors(arch)])
    if quantized == "nf4":
        _check_pairs(arch, mesh)
    kind = jnp.dtype(dtype)

    def read(weight: Weight, index: tuple[slice, ...] | None) -> np.ndarray:
        window = tuple(index or (slice(None),) * len(weight.shape))
        return weight.read(lambda name: checkpoint.source(prefix + name), window)

    def put(shape: tuple[int, ...], spec: PartitionSpec, part: Callable[..., np.ndarray]) -> jax.Array:
        return jax.make_array_from_callback(
            shape, NamedSharding(mesh, spec), lambda index: np.ascontiguousarray(part(index))
        )

    def place(weight: Weight) -> Any:
        if quantized == "none" or not weight.projection:
            return put(weight.shape, weight.spec, lambda i: read(weight, i).astype(kind, copy=False))
        step, rows = quantize.block(weight.shape[-2]), weight.shape[-2]

        # nf4 packs the halves of a block: half as many rows of codes.
        ratio = weight.shape[-2] // quantize.codes_shape(weight.shape, quantized)[-2]

        def codes(index: tuple[slice, ...] | None) -> np.ndarray:
            *outer, inner, last = index or (slice(None),) * len(weight.shape)
            start, stop, _ = inner.indices(rows // ratio)
            first, end = start * ratio // step * step, -(-stop * ratio // step) * step
            whole = read(weight, (*outer, slice(first, end), last))
            made = quantize.codes(whole, quantize.scales(whole), quantized)
            return made[..., start - first // ratio : stop - first // ratio, :]

        def scales(index: tuple[slice, ...] | None) -> np.ndarray:
            *outer, _, last = index or (slice(None),) * len(weight.shape)
            return quantize.scales(read(weight, (*outer, slice(None), last)))

        return quantize.Quantized(
            put(quantize.codes_shape(weight.shape, quantized), weight.spec, codes),
            put(quantize.scales_shape(weight.shape), _scales_spec(weight), scales),
            quantized,
        )

    return arch, jax.tree.map(place, weights(arch), is_leaf=lambda x: isinstance(x, Weight))


def _check_pairs(arch: Architecture, mesh: Mesh) -> None:
    """nf4 packs pairs of a contracted axis: half of it must divide too."""
    faults = {}
    for what, size, axis in (
        ("the model's width", arch.embed, "fsdp"),
        ("the MLP's width", arch.hidden, "tp"),
    ):
        if size // 2 % mesh.shape[axis]:
            fix = "Use int8, or a smaller axis."
            faults[what] = Fault(
                f"mesh.{axis}",
                f"must divide half of {what}, {size} / 2, with nf4",
                str(mesh.shape[axis]),
                fix,
            )
    if faults:
        raise UserError(faults.values())


def adapted(arch: Architecture, adapter: AdapterConfig) -> list[names.Projection]:
    """The projections that get adapters. Raises UserError when the targets name none."""
    wanted = [p for p in names.projections(arch) if set(p.targets) & set(adapter.targets)]
    if not wanted:
        raise UserError(
            Fault("adapter.targets", "name no projection of this model", show(list(adapter.targets)))
        )
    return wanted


def adapter_shapes(arch: Architecture, adapter: AdapterConfig, mesh: Mesh) -> list[list[Tree]]:
    """The stacked adapter as float32 shapes with shardings."""
    flat: Tree = {}
    for projection in adapted(arch, adapter):
        kind = projection.path.rsplit(".", 1)[1]
        for side, (leaf, shape) in enumerate(
            zip((projection.a, projection.b), projection.shapes(adapter.rank), strict=True)
        ):
            flat[f"{projection.path}.{leaf}"] = (shape, lora.SPECS[kind][side])

    def shape_of(parts: list[tuple[tuple[int, ...], PartitionSpec]]) -> jax.ShapeDtypeStruct:
        shape, spec = parts[0]
        sharding = NamedSharding(mesh, P(None, *spec))
        return jax.ShapeDtypeStruct((len(parts), *shape), jnp.float32, sharding=sharding)

    return _stack(arch, flat, shape_of)


def init(arch: Architecture, adapter: AdapterConfig, *, seed: int, mesh: Mesh) -> list[list[Tree]]:
    """A fresh adapter, stacked: the same values as `lora.apply` gives each module."""
    makers: Tree = {}
    for projection in adapted(arch, adapter):
        for leaf, shape in zip((projection.a, projection.b), projection.shapes(adapter.rank), strict=True):
            path = f"{projection.path}.{leaf}"
            makers[path] = partial(lora.initial, path, shape, seed)
    made = _stack(arch, makers, lambda parts: np.stack([part() for part in parts]))
    return jax.tree.map(
        lambda values, want: jax.make_array_from_callback(values.shape, want.sharding, values.__getitem__),
        made,
        adapter_shapes(arch, adapter, mesh),
    )


def stack(arch: Architecture, nested: Mapping[str, Any], mesh: Mesh) -> list[list[Tree]]:
    """An adapter's tree (as checkpoints hold it) as stacked arrays on the mesh.

    Raises UserError when a layer lacks what another layer of its position has, or there is too much.
    """
    flat = dict(lora.flatten(nested))
    known = {f"{p.path}.{leaf}" for p in names.projections(arch) for leaf in (p.a, p.b)}
    faults = [
        Fault(f"adapter: {path}", "is not an adapter of this model") for path in flat if path not in known
    ]
    for stage in stages(arch):
        for position in range(stage.period):
            layers = stage.layers(position)
            have = [{p.split(".", 2)[2] for p in flat if p.startswith(f"layers.{i}.")} for i in layers]
            for i, own in zip(layers, have, strict=True):
                for name in sorted(set().union(*have) - own):
                    faults.append(Fault(f"adapter: layers.{i}.{name}", "is missing"))
    if faults:
        raise UserError(faults[:20])

    def place(parts: list[Any]) -> jax.Array:
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in parts])

    stacked = _stack(arch, flat, place)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jax.device_put(
            x, NamedSharding(mesh, P(None, *lora.SPECS[path[-2].key][path[-1].key.endswith("_b")]))
        ),
        stacked,
    )


def unstack(arch: Architecture, stacked: list[list[Tree]]) -> Tree:
    """The adapter's tree by layer, as `lora.tree` gives it: {"layers": {"0": {"attn": ...}}}."""
    layers: dict[int, Tree] = {}
    for stage, positions in zip(stages(arch), stacked, strict=True):
        for position, tree in enumerate(positions):
            for repetition in range(stage.count):
                part = jax.tree.map(lambda x, r=repetition: x[r], tree)
                if part:
                    layers[stage.layer(repetition, position)] = part
    return {"layers": {str(i): layers[i] for i in sorted(layers)}}


def _stack(arch: Architecture, flat: Mapping[str, Any], join: Callable[[list[Any]], Any]) -> list[list[Tree]]:
    result: list[list[Tree]] = []
    for stage in stages(arch):
        positions: list[Tree] = []
        for position in range(stage.period):
            layers = stage.layers(position)
            tree: Tree = {}
            for path in [p for p in flat if p.startswith(f"layers.{layers[0]}.")]:
                part, module, leaf = path.split(".")[2:]
                value = join([flat[f"layers.{i}.{part}.{module}.{leaf}"] for i in layers])
                tree.setdefault(part, {}).setdefault(module, {})[leaf] = value
            positions.append(tree)
        result.append(positions)
    return result
