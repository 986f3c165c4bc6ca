"""A forward pass that holds one layer at a time, for models that are larger than the machine.

Tunix's own layers, filled one after the other from the checkpoint and let go again: every weight is
read once, whatever the number of prompts. Weights stay in the type of the file, sums are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunewright_workloads.gemma import load, names
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.names import Leaf, Source
from tunewright_workloads.merge import tensors
from tunewright_workloads.serve.probes import VOCABULARY
from tunewright_workloads.storage.store import Store


class Weights(Protocol):
    """A checkpoint, here or far away: `gemma.checkpoint.Checkpoint` is one."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def source(self, name: str) -> Source: ...


class Far:
    """The safetensors below any URI, read by ranges as they are sliced: rows of the first axis alone."""

    def __init__(self, store: Store) -> None:
        """Reads the headers. Raises UserError naming a damaged file."""
        self._store = store
        self._tensors: dict[str, tensors.Tensor] = {}
        for entry in store.entries():
            if entry.name.endswith(".safetensors"):
                read = partial(store.read, entry.name)
                self._tensors |= {t.name: t for t in tensors.read(entry.name, entry.size, read).tensors}
        self.shapes = {name: t.shape for name, t in self._tensors.items()}

    def source(self, name: str) -> Source:
        return _FarTensor(self._store, self._tensors[name])


class _FarTensor:
    def __init__(self, store: Store, tensor: tensors.Tensor) -> None:
        self._store, self._tensor = store, tensor

    def __getitem__(self, index: Any) -> np.ndarray:
        t, dtype = self._tensor, tensors.FLOATS[self._tensor.dtype]
        if not t.shape:
            return np.frombuffer(self._store.read(t.file, t.begin, t.size), dtype).reshape(())
        rows, *rest = index if isinstance(index, tuple) else (index,)
        start, stop, _ = rows.indices(t.shape[0])
        width = t.size // t.shape[0]
        data = self._store.read(t.file, t.begin + start * width, (stop - start) * width)
        return np.frombuffer(data, dtype).reshape(stop - start, *t.shape[1:])[(slice(None), *rest)]


@dataclass(frozen=True)
class Next:
    """The likeliest token after a position and its log-probability (nats)."""

    token: int
    logprob: float


class Streamed:
    """The text decoder of a checkpoint, not in memory.

    say: called with (layers done, layers) after each one.
    """

    def __init__(
        self, arch: Architecture, weights: Weights, say: Callable[[int, int], None] | None = None
    ) -> None:
        self.arch, self._say = arch, say or (lambda done, of: None)
        prefix = names.check(arch, dict(weights.shapes), "the checkpoint")
        self._get = lambda name: weights.source(prefix + name)
        self._leaves = names.leaves(arch)
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
        self._programs: dict[tuple[bool, bool], Any] = {}
        with self._mesh:
            self._model = load.abstract(arch, jnp.float32, jnp.float32)

    def next(self, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> list[list[Next]]:
        """For each row of token ids, what comes after each of its `positions`.

        Memory: one layer, its float32 activations for all rows padded to the longest, and a slice of
        the vocabulary.
        """
        T = max(map(len, rows))
        ids = np.zeros((len(rows), T), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        with self._mesh:
            x, extra = self._embed(ids)
            kept: dict[int, tuple[jax.Array, jax.Array]] = {}
            for i, layer in enumerate(self._model.layers):
                graph, state = self._filled(layer, f"layers.{i}.")
                shared = kept.get(self.arch.origin(i)) if self.arch.is_shared(i) else None
                here = None if extra is None else extra[:, :, i]
                # Layers of one kind have one structure: it is compiled once.
                kind = (self.arch.is_global(i), self.arch.is_shared(i))
                program = self._programs.setdefault(kind, _program(graph))
                x, kv = program(state, x, here, shared)
                if any(self.arch.origin(j) == i for j in range(i + 1, self.arch.layers)):
                    kept[i] = kv
                x.block_until_ready()  # or the next layer's weights come before these are let go
                self._say(i + 1, self.arch.layers)
            graph, state = self._filled(self._model.final_norm, "final_norm.")
            hidden = nnx.merge(graph, state)(x)
            flat = jnp.stack([hidden[i, at] for i, row in enumerate(positions) for at in row])
            found = iter(self._best(flat))
        return [[next(found) for _ in row] for row in positions]

    def _filled(self, module: nnx.Module, path: str) -> tuple[Any, Any]:
        """Graph and state of a part of the model, with its arrays."""
        graph, state = nnx.split(module)
        flat = [
            (at, variable.replace(jnp.asarray(self._read(self._leaves[path + load.dotted(at)]))))
            for at, variable in nnx.to_flat_state(state)
        ]
        return graph, nnx.from_flat_state(flat)

    def _read(self, leaf: Leaf, rows: slice | None = None) -> np.ndarray:
        """A parameter, or rows of its first axis, in the type of the file."""
        whole = [slice(0, size) for size in leaf.shape]
        return np.ascontiguousarray(leaf.read(self._get, (rows or whole[0], *whole[1:])))

    def _embed(self, ids: np.ndarray) -> tuple[jax.Array, jax.Array | None]:
        """(B, T, D) of the residual, and (B, T, layers, P) of the per-layer inputs where there are any.

        Tables of a quarter of a million rows are cut to the rows that occur, and the ids with them.
        """
        used, inverse = np.unique(ids, return_inverse=True)
        compact = jnp.asarray(inverse.reshape(ids.shape))
        graph, state = nnx.split(self._model.embedder)
        flat = []
        for at, variable in nnx.to_flat_state(state):
            leaf = self._leaves["embedder." + load.dotted(at)]
            if leaf.shape[0] == self.arch.vocab and "embedding" in leaf.path:
                value = np.concatenate([self._read(leaf, slice(int(t), int(t) + 1)) for t in used])
            else:
                value = self._read(leaf)
            flat.append((at, variable.replace(jnp.asarray(value, jnp.float32))))
        embedder = nnx.merge(graph, nnx.from_flat_state(flat))
        x = embedder.encode(compact)
        return x, embedder.encode_per_layer_input(x, compact) if self.arch.ple else None

    def _best(self, hidden: jax.Array) -> list[Next]:
        """Greedy token and log-probability for each row of (P, D), a slice of the vocabulary at a time."""
        leaf, cap = self._leaves["embedder.input_embedding"], self.arch.softcap
        count = hidden.shape[0]
        best, token = np.full(count, -math.inf), np.zeros(count, np.int64)
        total = np.full(count, -math.inf)
        for start in range(0, self.arch.vocab, VOCABULARY):
            rows = self._read(leaf, slice(start, min(start + VOCABULARY, self.arch.vocab)))
            logits = np.asarray(hidden @ jnp.asarray(rows, jnp.float32).T, np.float64)
            if cap is not None:
                logits = cap * np.tanh(logits / cap)
            top = logits.max(-1)
            token = np.where(top > best, start + logits.argmax(-1), token)
            best = np.maximum(best, top)
            total = np.logaddexp(total, top + np.log(np.exp(logits - top[:, None]).sum(-1)))
        return [Next(int(t), float(p)) for t, p in zip(token, best - total, strict=True)]


def _program(graph: Any) -> Callable[..., tuple[jax.Array, tuple[jax.Array, jax.Array]]]:
    """(state, (B, T, D), per-layer input or None, shared K and V or None) -> the layer's output under a
    causal mask, and its keys and values for layers that share them."""

    def forward(
        state: Any, x: jax.Array, extra: jax.Array | None, shared: tuple[jax.Array, jax.Array] | None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        B, T, _ = x.shape
        positions = jnp.broadcast_to(jnp.arange(T), (B, T))
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), jnp.bool_)), (B, T, T))
        kv = None if shared is None else {"k": shared[0], "v": shared[1]}
        layer = nnx.merge(graph, state)
        _, y, made = layer(x, positions, None, mask, per_layer_input=extra, kv_shared_cache=kv)
        return y, made

    return jax.jit(forward)
