"""Every tensor of a Gemma 4 text decoder: its Hugging Face name, its place in Tunix, its adapter.

Hugging Face names are without prefix here (`layers.0.self_attn.q_proj.weight`); a checkpoint puts
`model.language_model.` (multimodal class) or `model.` (text-only) in front. No JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gemma.architecture import Architecture

PREFIXES = ("model.language_model.", "model.")
SIDE = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.", "multi_modal_projector.")
"""Below `model.`: tensors of other modalities, carried through a merge and never built."""


class Source(Protocol):
    """Something that is sliced like an array and reads only what is asked for (safetensors' slices)."""

    def __getitem__(self, index: Any) -> np.ndarray: ...


@dataclass(frozen=True)
class Layout:
    """How a Hugging Face matrix becomes a Tunix array: axes by letter.

    theirs: for each Hugging Face axis the letters it is made of, outermost first.
    ours:   the letters in Tunix's order.
    """

    theirs: tuple[str, ...]
    ours: str

    def read(self, source: Source, sizes: Mapping[str, int], window: Mapping[str, slice]) -> np.ndarray:
        """The part of `source` that `window` (a slice a letter) asks for, in Tunix's order."""
        block = np.asarray(self._fetch(source, sizes, window, [], 0))
        letters = "".join(self.theirs)
        block = block.reshape([window[c].stop - window[c].start for c in letters])
        return np.transpose(block, [letters.index(c) for c in self.ours])

    def _fetch(
        self,
        source: Source,
        sizes: Mapping[str, int],
        window: Mapping[str, slice],
        index: list[slice],
        axis: int,
    ) -> np.ndarray:
        if axis == len(self.theirs):
            return np.asarray(source[tuple(index)])
        letters = self.theirs[axis]
        if len(letters) == 1:
            return self._fetch(source, sizes, window, [*index, window[letters]], axis + 1)
        outer, inner, step = window[letters[0]], window[letters[1]], sizes[letters[1]]
        if inner == slice(0, step):
            whole = slice(outer.start * step, outer.stop * step)
            return self._fetch(source, sizes, window, [*index, whole], axis + 1)
        parts = [
            self._fetch(
                source,
                sizes,
                window,
                [*index, slice(i * step + inner.start, i * step + inner.stop)],
                axis + 1,
            )
            for i in range(outer.start, outer.stop)
        ]
        return np.concatenate(parts, axis)


@dataclass(frozen=True)
class Leaf:
    """One Tunix parameter: `path` ("layers.0.attn.q_einsum.w"), shape, and where its values come from.

    Two sources (K and V) are stacked on a new first axis.
    """

    path: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    layout: Layout

    def read(self, get: Callable[[str], Source], index: tuple[slice, ...]) -> np.ndarray:
        """The part of the parameter at `index` (slices without step), read from its sources."""
        window = [slice(*part.indices(size)[:2]) for part, size in zip(index, self.shape, strict=True)]
        if len(self.sources) == 1:
            return self.layout.read(get(self.sources[0]), *self._letters(window, self.shape))
        letters = self._letters(window[1:], self.shape[1:])
        chosen = self.sources[window[0]]
        return np.stack([self.layout.read(get(name), *letters) for name in chosen])

    def _letters(
        self, window: list[slice], shape: tuple[int, ...]
    ) -> tuple[dict[str, int], dict[str, slice]]:
        ours = self.layout.ours
        return dict(zip(ours, shape, strict=True)), dict(zip(ours, window, strict=True))


_VECTOR = Layout(("a",), "a")
_TABLE = Layout(("v", "d"), "vd")
_LINEAR = Layout(("o", "i"), "io")
_HEADS = Layout(("nh", "d"), "ndh")
_OUT = Layout(("d", "nh"), "nhd")
_LAYER_TABLE = Layout(("v", "lp"), "vlp")
_LAYER_MODEL = Layout(("lp", "d"), "dlp")


def leaves(arch: Architecture) -> dict[str, Leaf]:
    """Every parameter of the Tunix model by path, in the order of the checkpoint.

    kv-shared layers have no K and V of their own: neither here, nor in what transformers saves.
    """
    found: list[Leaf] = []

    def add(path: str, shape: tuple[int, ...], layout: Layout, *sources: str) -> None:
        found.append(Leaf(path, shape, sources, layout))

    shape: tuple[int, ...]
    D = arch.embed
    add("embedder.input_embedding", (arch.vocab, D), _TABLE, "embed_tokens.weight")
    if arch.ple:
        shape = (arch.vocab, arch.layers, arch.ple)
        add(
            "embedder.per_layer_input_embedding",
            shape,
            _LAYER_TABLE,
            "embed_tokens_per_layer.weight",
        )
        shape = (D, arch.layers, arch.ple)
        add(
            "embedder.per_layer_model_projection.w",
            shape,
            _LAYER_MODEL,
            "per_layer_model_projection.weight",
        )
        add(
            "embedder.per_layer_projection_norm.scale",
            (arch.ple,),
            _VECTOR,
            "per_layer_projection_norm.weight",
        )
    for i in range(arch.layers):
        here, there = f"layers.{i}.", f"layers.{i}."
        N, K, H, F = arch.heads, arch.kv_heads(i), arch.dim(i), arch.width(i)
        for ours, theirs in (
            ("pre_attention_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("pre_ffw_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ):
            add(f"{here}{ours}.scale", (D,), _VECTOR, f"{there}{theirs}.weight")
        attn = f"{there}self_attn."
        add(f"{here}attn.q_einsum.w", (N, D, H), _HEADS, f"{attn}q_proj.weight")
        add(f"{here}attn._query_norm.scale", (H,), _VECTOR, f"{attn}q_norm.weight")
        if not arch.is_shared(i):
            if arch.k_is_v(i):
                add(f"{here}attn.k_einsum.w", (K, D, H), _HEADS, f"{attn}k_proj.weight")
            else:
                add(
                    f"{here}attn.kv_einsum.w",
                    (2, K, D, H),
                    _HEADS,
                    f"{attn}k_proj.weight",
                    f"{attn}v_proj.weight",
                )
            add(f"{here}attn._key_norm.scale", (H,), _VECTOR, f"{attn}k_norm.weight")
        add(f"{here}attn.attn_vec_einsum.w", (N, H, D), _OUT, f"{attn}o_proj.weight")
        for name, shape in (("gate_proj", (D, F)), ("up_proj", (D, F)), ("down_proj", (F, D))):
            add(f"{here}mlp.{name}.kernel", shape, _LINEAR, f"{there}mlp.{name}.weight")
        if arch.ple:
            for name, shape in (
                ("per_layer_input_gate", (D, arch.ple)),
                ("per_layer_projection", (arch.ple, D)),
            ):
                add(f"{here}{name}.w", shape, _LINEAR, f"{there}{name}.weight")
            norm = "post_per_layer_input_norm"
            add(f"{here}{norm}.scale", (D,), _VECTOR, f"{there}{norm}.weight")
        add(f"{here}skip_scale", (1,), _VECTOR, f"{there}layer_scalar")
    add("final_norm.scale", (D,), _VECTOR, "norm.weight")
    return {leaf.path: leaf for leaf in found}


def tensors(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint must hold: name without prefix -> its Hugging Face shape."""
    result: dict[str, tuple[int, ...]] = {}
    for leaf in leaves(arch).values():
        shape = leaf.shape[1:] if len(leaf.sources) == 2 else leaf.shape
        sizes = dict(zip(leaf.layout.ours, shape, strict=True))
        theirs = tuple(int(np.prod([sizes[c] for c in letters])) for letters in leaf.layout.theirs)
        result |= dict.fromkeys(leaf.sources, theirs)
    return result


def optional(arch: Architecture) -> frozenset[str]:
    """Tensors that a checkpoint may hold and that nothing reads: K and V of kv-shared layers, a tied head."""
    shared = range(arch.unshared, arch.layers)
    unread = ("k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight")
    return frozenset(f"layers.{i}.self_attn.{name}" for i in shared for name in unread)


def text_prefix(tensor_names: Iterable[str]) -> str:
    """What stands before the text decoder's names. Raises UserError when no text decoder is there."""
    names = set(tensor_names)
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    some = ", ".join(sorted(names)[:3]) or "no tensors"
    wanted = " or ".join(f"{prefix}embed_tokens.weight" for prefix in PREFIXES)
    raise UserError(
        Fault("safetensors", f"hold no Gemma 4 text decoder: {wanted} is missing", f"{some}, ...")
    )


def check(arch: Architecture, shapes: Mapping[str, tuple[int, ...]], place: str) -> str:
    """Compares the full tensor names and shapes of a checkpoint with its architecture.

    Returns the text prefix. Raises UserError that names every missing, unexpected and mis-shaped tensor.
    """
    prefix = text_prefix(shapes)
    wanted = {prefix + name: shape for name, shape in tensors(arch).items()}
    spare = {prefix + name for name in optional(arch)}
    faults = [
        Fault(f"{place}: {name}", f"is missing; {list(shape)} is expected")
        for name, shape in wanted.items()
        if name not in shapes
    ]
    for name, shape in shapes.items():
        if name in wanted:
            if tuple(shape) != wanted[name]:
                faults.append(
                    Fault(f"{place}: {name}", f"must have shape {list(wanted[name])}", str(list(shape)))
                )
        elif name not in spare and name != "lm_head.weight" and not _beside(name):
            faults.append(Fault(f"{place}: {name}", "is not a tensor of this architecture (see config.json)"))
    if faults:
        raise UserError(_few(faults))
    return prefix


def _beside(name: str) -> bool:
    return name.startswith(tuple(f"model.{side}" for side in SIDE))


def _few(faults: list[Fault], most: int = 20) -> list[Fault]:
    if len(faults) <= most:
        return faults
    return [*faults[:most], Fault(f"{len(faults) - most} more tensors", "are wrong in the same way")]


Kind = Literal["heads", "pair", "out", "linear"]


@dataclass(frozen=True)
class Projection:
    """One adapted projection: the Tunix module, its adapter's leaves, and the weights it changes.

    a, b:    names of the leaves beside the module's weight.
    weights: Hugging Face names without prefix, two for a fused K and V.
    targets: the names under which a user asks for it (PEFT's).
    rank axis: the last of a, the first of b.
    """

    path: str
    a: str
    b: str
    weights: tuple[str, ...]
    targets: tuple[str, ...]
    kind: Kind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a and b."""
        return (*self.inputs, rank), (rank, *self.outputs)

    def delta(self, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        """What the adapter adds to each of `weights`, f32, Hugging Face layout (out, in).

        a, b: shapes as `shapes(rank)`. Not yet times alpha / rank.
        Raises ValueError when the shapes do not fit.
        """
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        rank = a.shape[-1] if a.ndim else 0
        if (a.shape, b.shape) != self.shapes(rank):
            wanted = " and ".join(map(str, self.shapes(rank)))
            raise ValueError(f"{self.path}: adapter shapes {a.shape} and {b.shape} are not {wanted}")
        a, sides = a.reshape(-1, rank).T, [b]
        if self.kind == "pair":
            sides = [b[:, 0], b[:, 1]]
        return [side.reshape(rank, -1).T @ a for side in sides]


def projections(arch: Architecture) -> list[Projection]:
    """Every projection that can have an adapter, in the model's order.

    The K = V projection of a global layer is one projection with one weight; the fused K and V of
    a local layer share a, and b[:, 0] is K's, b[:, 1] is V's; kv-shared layers have neither.
    """
    result = []
    for i in range(arch.layers):
        N, K, H, D, F = arch.heads, arch.kv_heads(i), arch.dim(i), arch.embed, arch.width(i)
        here = f"layers.{i}.attn."
        there = f"layers.{i}.self_attn."

        def add(
            path: str,
            kind: Kind,
            inputs: tuple[int, ...],
            outputs: tuple[int, ...],
            targets: tuple[str, ...],
            *weights: str,
        ) -> None:
            leaf = "kernel" if kind == "linear" else "w"
            result.append(
                Projection(path, f"{leaf}_lora_a", f"{leaf}_lora_b", weights, targets, kind, inputs, outputs)
            )

        add(f"{here}q_einsum", "heads", (D,), (N, H), ("q_proj",), f"{there}q_proj.weight")
        if not arch.is_shared(i):
            both = ("k_proj", "v_proj")
            if arch.k_is_v(i):
                add(f"{here}k_einsum", "heads", (D,), (K, H), both, f"{there}k_proj.weight")
            else:
                pair = (f"{there}k_proj.weight", f"{there}v_proj.weight")
                add(f"{here}kv_einsum", "pair", (D,), (2, K, H), both, *pair)
        add(f"{here}attn_vec_einsum", "out", (N, H), (D,), ("o_proj",), f"{there}o_proj.weight")
        for name, shape in (("gate_proj", (D, F)), ("up_proj", (D, F)), ("down_proj", (F, D))):
            weight = f"layers.{i}.mlp.{name}.weight"
            add(f"layers.{i}.mlp.{name}", "linear", (shape[0],), (shape[1],), (name,), weight)
    return result
