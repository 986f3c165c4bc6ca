"""The training program: Gemma 4 with LoRA over packed rows, as a few scans over stacked parameters.

    arch, base = stages.load(directory, mesh=mesh, dtype=compute_dtype)
    adapter = stages.init(arch, adapter_config, seed=seed, mesh=mesh)
    settings = Settings.of(arch, adapter_config, mesh=mesh, compute_dtype=compute_dtype, remat="none")
    total, tokens = loss(adapter, base, batch, settings, key=None)

`loss(lora, base, batch, config, key) -> (sum_loss, tokens)`: summed over trained tokens, so that
micro batches and hosts add up. Differentiate with respect to `lora`. `batch` is a mapping of [B, T]
arrays: tokens, targets, weights, segments (0 for padding), positions (restarted in every example).
`key` turns the adapters' dropout on. `stages.unstack` gives the tree that checkpoints hold.

It computes what Tunix's modules with Qwix's adapters compute (a test holds them together), but: packed
rows stay apart, no T x T attention and no logits are materialised, activations are kept by name, and
attention is head-major, [B, N, T, h] straight from the projections, without transposes around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as named
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import attention, quantize, ring
from tunewright_workloads.gemma import loss as losses
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.stages import Stage, stages

Tree = dict[str, Any]
P = PartitionSpec
Batch = Mapping[str, jax.Array]

NAMES = ("attn", "q", "k", "v", "o", "down", "gate", "up", "xa")
"""Activations that can be kept for the backward pass; with all of them no matmul runs twice.

attn: attention's output and logsumexp; xa: inputs times A; the others: outputs of their projections.
"""

SAVED: dict[str, tuple[str, ...] | None] = {"none": None, "block": ("o", "down"), "decoder": ()}
"""What each remat policy keeps. None: no recomputation at all, whatever autodiff keeps; where weights are
gathered or dequantized for use that would be the weights of every layer, so there it means all of NAMES."""

OPTIONS: dict[str, Any] = {"xla_tpu_scoped_vmem_limit_kib": "49152"}
"""How the step is compiled for TPUs: larger tiles than the default of 16 MiB allows (matmuls come from
0.88-0.95 to 0.98 of what the compiler thinks possible), and what the attention kernel's blocks need."""


@dataclass(frozen=True)
class Settings:
    """Everything static about the program.

    targets: of the adapter; half of a fused K and V may be asked for, the other half's B stays zero.
    saved:   names of kept activations (of NAMES), or None for no recomputation.
    ring:    weights go round (`gemma.ring`) instead of being gathered.
    """

    arch: Architecture
    scale: float
    targets: frozenset[str]
    dropout: float
    dtype: Any
    mesh: Mesh | None
    saved: tuple[str, ...] | None
    attention: attention.Kind
    chunk: int = losses.CHUNK
    unroll: int = 1
    barriers: bool = False
    ring: bool = False

    @classmethod
    def of(
        cls,
        arch: Architecture,
        adapter: AdapterConfig | None,
        *,
        mesh: Mesh | None,
        compute_dtype: Any,
        remat: Literal["none", "block", "decoder"] | tuple[str, ...] = "none",
        chunk: int = losses.CHUNK,
    ) -> Settings:
        """Settings for a mesh's platform. adapter: None for a model without adapters."""
        tpu = mesh is not None and mesh.devices.flat[0].platform == "tpu"
        split = mesh is not None and (mesh.size > 1 or tpu)
        saved = SAVED[remat] if isinstance(remat, str) else remat
        if saved is None and (split or (adapter is not None and adapter.quantize_base != "none")):
            saved = NAMES
        return cls(
            arch=arch,
            scale=adapter.alpha / adapter.rank if adapter else 0.0,
            targets=frozenset(adapter.targets if adapter else ()),
            dropout=adapter.dropout if adapter else 0.0,
            dtype=jnp.dtype(compute_dtype),
            mesh=mesh if split else None,
            saved=saved,
            attention="splash" if tpu else "blocks",
            chunk=chunk,
            barriers=tpu,
            ring=tpu and ring.fits(mesh),
        )


def loss(
    lora: Any, base: Tree, batch: Batch, config: Settings, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """(summed loss in nats, summed weights) of a batch of packed rows.

    lora: stacked adapters as `stages.init` makes them, or None. key: of the dropout; None turns it off.
    """
    x = hidden(lora, base, batch, config, key)
    head = _Place(config)(base["embedder.input_embedding"], P("tp", None)).astype(config.dtype)
    weights = batch["weights"].astype(jnp.float32)
    total = losses.cross_entropy(x, head, batch["targets"], weights, config.arch.softcap, config.chunk)
    return total, weights.sum()


def logits(lora: Any, base: Tree, batch: Batch, config: Settings) -> jax.Array:
    """[B, T, V], float32: for tests and small models."""
    x = hidden(lora, base, batch, config, None)
    head = base["embedder.input_embedding"].astype(config.dtype)
    raw = jnp.einsum("btd,vd->btv", x, head).astype(jnp.float32)
    cap = config.arch.softcap
    return raw if cap is None else jnp.tanh(raw / cap) * cap


def hidden(lora: Any, base: Tree, batch: Batch, config: Settings, key: jax.Array | None) -> jax.Array:
    """The hidden states after the final norm, [B, T, D]."""
    arch, place = config.arch, _Place(config)
    tokens, positions = batch["tokens"], batch["positions"]
    table = place(base["embedder.input_embedding"], P("tp", None))
    x = table[tokens]
    x = (x * jnp.sqrt(jnp.asarray(arch.embed)).astype(x.dtype)).astype(config.dtype)
    x = place(x, P("fsdp", None, None))
    shared = _Shared(
        segments=batch["segments"],
        rope={g: rope_table(positions, arch, g) for g in sorted(set(arch.globals))},
    )
    ple = _per_layer_inputs(base, x, tokens, config) if arch.ple else None
    kv: dict[bool, tuple[jax.Array, jax.Array]] = {}
    for number, stage in enumerate(stages(arch)):
        adapters = lora[number] if lora else [{} for _ in range(stage.period)]
        x, kv = _stage(stage, base["stages"][number], adapters, x, ple, kv, shared, config, key)
    return norm(x, base["final_norm.scale"], config)


class _Shared(NamedTuple):
    """What every layer reads: segment ids [B, T], and sines and cosines by kind of layer."""

    segments: jax.Array
    rope: dict[bool, tuple[jax.Array, jax.Array]]


class _Place:
    """Sharding constraints; nothing on one device."""

    def __init__(self, config: Settings) -> None:
        self.mesh = config.mesh

    def __call__(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        if self.mesh is None:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def _per_layer_inputs(base: Tree, x: jax.Array, tokens: jax.Array, config: Settings) -> jax.Array:
    """[L, B, T, P]: what each layer is given of the tokens themselves."""
    arch = config.arch
    weight = base["embedder.per_layer_model_projection.w"] * float(arch.embed) ** -0.5
    projected = jnp.einsum("btd,dlp->lbtp", x, weight.astype(config.dtype))
    projected = norm(projected, base["embedder.per_layer_projection_norm.scale"], config)
    looked_up = base["embedder.per_layer_input_embedding"][tokens]
    looked_up = looked_up * jnp.sqrt(jnp.asarray(arch.ple)).astype(looked_up.dtype)
    both = projected + jnp.moveaxis(looked_up, 2, 0)
    return (both * lax.rsqrt(jnp.asarray(2.0)).astype(both.dtype)).astype(config.dtype)


def _stage(
    stage: Stage,
    weights: list[Tree],
    adapters: list[Tree],
    x: jax.Array,
    ple: jax.Array | None,
    kv: dict[bool, tuple[jax.Array, jax.Array]],
    shared: _Shared,
    config: Settings,
    key: jax.Array | None,
) -> tuple[jax.Array, dict[bool, tuple[jax.Array, jax.Array]]]:
    """A stage's layers. Returns x and, for a last stage before kv-shared ones, its K and V by kind of layer."""
    arch = config.arch
    hands_on = bool(arch.kv_shared_layers) and stage.first + stage.period == arch.unshared
    # Inside a scan the compiler cannot undo the recomputation; outside it would.
    layers = [
        _kept(partial(_layer, stage.first + j, config), config.saved, prevent_cse=stage.count == 1)
        for j in range(stage.period)
    ]
    takes = arch.is_shared(stage.first)

    def repetition(x: jax.Array, item: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        b, a, given, index = item
        made = {}
        for j, layer in enumerate(layers):
            number = stage.first + j
            own = None if key is None else jax.random.fold_in(key, number + index * stage.period)
            kind = arch.globals[number]
            x, pair = layer(
                b[j], a[j], x, None if given is None else given[j], kv[kind] if takes else None, shared, own
            )
            made[kind] = pair
        return x, made if hands_on else None

    given = None
    if ple is not None:
        part = ple[stage.first : stage.first + stage.count * stage.period]
        given = part.reshape(stage.count, stage.period, *part.shape[1:])
    items = (weights, adapters, given, jnp.arange(stage.count))
    if stage.count == 1:
        x, made = repetition(x, jax.tree.map(lambda leaf: leaf[0], items))
    else:
        x, made = lax.scan(repetition, x, items, unroll=config.unroll)
    return x, made if hands_on else kv


def _kept(layer: Any, saved: tuple[str, ...] | None, *, prevent_cse: bool) -> Any:
    if saved is None:
        return layer
    policy = jax.checkpoint_policies.save_only_these_names(*saved)
    return jax.checkpoint(layer, policy=policy, prevent_cse=prevent_cse)


def _layer(
    number: int,
    config: Settings,
    b: Tree,
    a: Tree,
    x: jax.Array,
    given: jax.Array | None,
    kv: tuple[jax.Array, jax.Array] | None,
    shared: _Shared,
    key: jax.Array | None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """One decoder layer. Returns x [B, T, D] and its K and V [B, K, T, h], as later layers may share them.

    number: a layer of the same kind; kv: those of the layer it shares from.
    """
    arch, place = config.arch, _Place(config)
    is_global = arch.globals[number]
    bar = lax.optimization_barrier if config.barriers else (lambda value: value)
    lora = _Adapters(a, config, key)
    heads, rows = P("fsdp", "tp", None, None), P("fsdp", None, None)

    def weight(name: str, spec: PartitionSpec) -> jax.Array:
        value = b[name]
        if not isinstance(value, quantize.Quantized):
            return place(value.astype(config.dtype), spec)
        codes = place(value.codes, spec)
        whole = P(*spec[:-2], None, spec[-1]) if len(spec) == value.codes.ndim else spec
        scales = place(value.scales, whole)
        return quantize.dequantize(quantize.Quantized(codes, scales, value.kind), config.dtype)

    def times(formula: str, x: jax.Array, name: str, spec: PartitionSpec) -> jax.Array:
        if config.ring and not isinstance(b[name], quantize.Quantized):
            assert config.mesh is not None
            return ring.matmul(formula, x, b[name].astype(config.dtype), config.mesh)
        return jnp.einsum(formula, x, weight(name, spec))

    def project(h: jax.Array, name: str, delta: jax.Array | None, label: str) -> jax.Array:
        y = times("btd,ndh->bnth", h, f"attn.{name}.w", P("tp", None, None))
        return named(place(y if delta is None else y + delta, heads), label)

    h = bar(norm(x, b["pre_attention_norm.scale"], config))
    fused = arch.k_is_v(number)
    modules = ["q_einsum"] if kv is not None else ["q_einsum", "k_einsum" if fused else "kv_einsum"]
    down = lora.inputs(h, "attn", modules)
    q = project(h, "q_einsum", lora.heads(down, "q_einsum"), "q")
    sin, cos = shared.rope[is_global]
    q = rope(norm(q, b["attn._query_norm.scale"], config), sin, cos)
    if kv is None:
        if fused:
            k = v = project(h, "k_einsum", lora.heads(down, "k_einsum"), "k")
        else:
            k = project(h, "k_einsum", lora.pair(down, 0), "k")
            v = project(h, "v_einsum", lora.pair(down, 1), "v")
        k, v = rope(norm(k, b["attn._key_norm.scale"], config), sin, cos), norm(v, None, config)
    else:
        k, v = kv
    window = None if is_global else arch.window
    out = attention.attend(q, k, v, shared.segments, window=window, kind=config.attention, mesh=config.mesh)
    if config.attention != "splash":  # whose kernel names its own residuals
        out = named(out, "attn")
    out = place(out, heads)
    y = times("bnth,nhd->btd", out, "attn.attn_vec_einsum.w", P("tp", None, None))
    delta = lora.output(out)
    y = named(place(y if delta is None else y + delta, rows), "o")
    x = x + norm(bar(y), b["post_attention_norm.scale"], config)

    h = bar(norm(x, b["pre_ffw_norm.scale"], config))
    down = lora.inputs(h, "mlp", ["gate_proj", "up_proj"])
    wide = P("fsdp", None, "tp")
    gate, up = (
        named(
            place(lora.add(times("btd,df->btf", h, f"mlp.{name}.kernel", P(None, "tp")), down, name), wide),
            label,
        )
        for name, label in (("gate_proj", "gate"), ("up_proj", "up"))
    )
    h = bar(geglu(gate, up))
    down = lora.inputs(h, "mlp", ["down_proj"])
    y = lora.add(times("btf,fd->btd", h, "mlp.down_proj.kernel", P("tp", None)), down, "down_proj")
    y = named(place(y, rows), "down")
    x = x + norm(bar(y), b["post_ffw_norm.scale"], config)

    if given is not None:
        y = jax.nn.gelu(x @ weight("per_layer_input_gate.w", P(None, "tp"))) * given
        y = y @ weight("per_layer_projection.w", P("tp", None))
        x = x + norm(y, b["post_per_layer_input_norm.scale"], config)
    return place(x * b["skip_scale"].astype(x.dtype), rows), (k, v)


class _Adapters:
    """The low-rank part of one layer's projections; nothing for modules without adapters."""

    def __init__(self, tree: Tree, config: Settings, key: jax.Array | None) -> None:
        self.tree, self.config, self.key = tree, config, key
        self.place = _Place(config)

    def _leaf(self, part: str, module: str, side: str, spec: PartitionSpec) -> jax.Array | None:
        leaves = self.tree.get(part, {}).get(module)
        if leaves is None:
            return None
        name = ("w" if part == "attn" else "kernel") + "_lora_" + side
        return self.place(leaves[name].astype(self.config.dtype), spec)

    def _dropped(self, h: jax.Array, module: str) -> jax.Array:
        rate = self.config.dropout
        if self.key is None or not rate:
            return h
        order = ("q_einsum", "k_einsum", "kv_einsum", "attn_vec_einsum", "gate_proj", "up_proj", "down_proj")
        key = jax.random.fold_in(self.key, order.index(module))
        return jnp.where(jax.random.bernoulli(key, 1 - rate, h.shape), h / (1 - rate), 0).astype(h.dtype)

    def inputs(self, h: jax.Array, part: str, modules: list[str]) -> dict[str, jax.Array]:
        """h times A for each module, scaled. One matmul for all of them where dropout does not part them."""
        row = part == "mlp" and modules == ["down_proj"]
        spec = P("tp", None) if row else P()
        found = {m: leaf for m in modules if (leaf := self._leaf(part, m, "a", spec)) is not None}
        if not found:
            return {}
        if self.key is not None and self.config.dropout:
            parts = [self._dropped(h, module) @ leaf for module, leaf in found.items()]
            y = jnp.concatenate(parts, -1)
        else:
            y = h @ (
                jnp.concatenate(list(found.values()), 1) if len(found) > 1 else next(iter(found.values()))
            )
        y = named(y, "xa") * jnp.asarray(self.config.scale, h.dtype)
        return dict(zip(found, jnp.split(y, len(found), -1), strict=True))

    def heads(self, down: dict[str, jax.Array], module: str) -> jax.Array | None:
        """[B, N, T, h] of a projection to heads."""
        if module not in down:
            return None
        leaf = self._leaf("attn", module, "b", P(None, "tp", None))
        return jnp.einsum("btr,rnh->bnth", down[module], leaf)

    def pair(self, down: dict[str, jax.Array], half: int) -> jax.Array | None:
        """K's (0) or V's (1) half of the fused projection, if it is a target."""
        if "kv_einsum" not in down or ("k_proj", "v_proj")[half] not in self.config.targets:
            return None
        leaf = self._leaf("attn", "kv_einsum", "b", P(None, None, "tp", None))
        assert leaf is not None
        return jnp.einsum("btr,rnh->bnth", down["kv_einsum"], leaf[:, half])

    def output(self, out: jax.Array) -> jax.Array | None:
        """[B, T, D] of the projection from heads; out [B, N, T, h]."""
        a = self._leaf("attn", "attn_vec_einsum", "a", P("tp", None, None))
        if a is None:
            return None
        b = self._leaf("attn", "attn_vec_einsum", "b", P())
        y = named(jnp.einsum("bnth,nhr->btr", self._dropped(out, "attn_vec_einsum"), a), "xa")
        return (y * jnp.asarray(self.config.scale, y.dtype)) @ b

    def add(self, y: jax.Array, down: dict[str, jax.Array], module: str) -> jax.Array:
        """y plus the adapter of a projection of the MLP."""
        if module not in down:
            return y
        leaf = self._leaf("mlp", module, "b", P() if module == "down_proj" else P(None, "tp"))
        assert leaf is not None
        return y + down[module] @ leaf


def norm(x: jax.Array, scale: jax.Array | None, config: Settings) -> jax.Array:
    """RMS norm over the last axis, computed in float32, in the compute dtype."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)
    return (y if scale is None else y * scale.astype(jnp.float32)).astype(config.dtype)


def rope_table(positions: jax.Array, arch: Architecture, is_global: bool) -> tuple[jax.Array, jax.Array]:
    """Sines and cosines [B, 1, T, h / 2], float32; dimensions that do not rotate have angle 0."""
    size = arch.global_head_dim if is_global else arch.head_dim
    theta = arch.global_theta if is_global else arch.local_theta
    factor = arch.global_factor if is_global else arch.local_factor
    turning = int((arch.global_proportion if is_global else 1.0) * size // 2)
    scale = theta ** (jnp.arange(turning, dtype=jnp.float32) * (2.0 / size))
    scale = jnp.pad(scale, (0, size // 2 - turning), constant_values=math.inf)
    angle = positions[:, None, :, None] / scale / factor
    return jnp.sin(angle), jnp.cos(angle)


def rope(x: jax.Array, sin: jax.Array, cos: jax.Array) -> jax.Array:
    """Rotates [B, N, T, h] by position; the two halves of a head are the pairs."""
    one, two = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1).astype(x.dtype)


@jax.custom_vjp
def geglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """gelu(gate) * up with the tanh approximation, and its gradient in closed form.

    Autodiff keeps float32 intermediates of the gelu; this keeps its two inputs.
    """
    return jax.nn.gelu(gate) * up


def _geglu_backward(kept: tuple[jax.Array, jax.Array], upstream: jax.Array) -> tuple[jax.Array, jax.Array]:
    gate, up = kept
    g, u, d = (value.astype(jnp.float32) for value in (gate, up, upstream))
    c = math.sqrt(2 / math.pi)
    square = g * g
    half = 0.5 + 0.5 * jnp.tanh(g * (c + c * 0.044715 * square))
    slope = half + g * (1 - half) * half * (2 * c + 6 * c * 0.044715 * square)
    return (d * u * slope).astype(gate.dtype), (d * g * half).astype(up.dtype)


geglu.defvjp(lambda gate, up: (geglu(gate, up), (gate, up)), _geglu_backward)
