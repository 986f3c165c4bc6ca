"""The compiled half of the engine: Tunix's Gemma 4 with a key/value cache of fixed slots.

Two programs serve every request. Prefill writes the keys and values of a prompt but for its last
token, padded to one of a few lengths, into a slot; decode takes one token for every slot at once,
each at its own position (Tunix's own cache has one position for the whole batch, so decode is a
`vmap` of batches of one). The first generated token comes from decode, too: logits of whole prompts
(length x 262,144) are never needed and the compiler drops them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tunewright_workloads.gemma import load

Cache = dict[str, dict[str, jax.Array]]


class Runner:
    """Weights, cache and compiled programs. Not thread-safe: one thread drives it.

    slots:   sequences decoded together.
    length:  tokens a sequence may have, prompt and answer together.
    """

    def __init__(
        self, directory: Path, *, slots: int, length: int, param_dtype: Any, compute_dtype: Any
    ) -> None:
        # One device: the engine is for one machine's laptop or GPU; slices are vLLM's.
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
        with self._mesh:
            model = load.load(
                directory, mesh=self._mesh, param_dtype=param_dtype, compute_dtype=compute_dtype
            )
            # A ring cache of window size cannot take a right-padded prefill: the padding would push
            # the prompt out. A cache of full length masks the window instead.
            model.config.use_sliding_window_kv_cache = False
            model.config.use_flash_attention = False
            self._cache: Cache = {
                name: {"k": layer["k"], "v": layer["v"]}
                for name, layer in model.init_cache(slots, length, compute_dtype).items()
            }
        self.slots, self.length = slots, length
        self.vocab = int(model.num_embed)
        self.buckets = buckets(length)
        self._graph, self._state = nnx.split(model)
        self._prefill = jax.jit(self._prefill_program, donate_argnums=(1,))
        self._decode = jax.jit(self._decode_program, donate_argnums=(1,))

    def warm(self) -> None:
        """Compiles and runs every program once."""
        for bucket in self.buckets:
            self.prefill(0, [0] * bucket)
        self.decode(np.zeros(self.slots, np.int32), np.zeros(self.slots, np.int32))

    def prefill(self, slot: int, tokens: list[int]) -> None:
        """Puts the keys and values of `tokens` at positions 0.. of `slot`. Nothing for no tokens."""
        if not tokens:
            return
        size = next(b for b in self.buckets if b >= len(tokens))
        padded = np.zeros(size, np.int32)
        padded[: len(tokens)] = tokens
        with self._mesh:
            self._cache = self._prefill(self._state, self._cache, padded, np.int32(slot))

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Logits (slots, vocab) f32 of the token after `tokens` (slots,), each at its position.

        Slots that hold no sequence compute something nobody reads; prefill overwrites it.
        """
        with self._mesh:
            self._cache, logits = self._decode(self._state, self._cache, tokens, positions)
        return np.asarray(logits)

    def _prefill_program(self, state: Any, cache: Cache, tokens: jax.Array, slot: jax.Array) -> Cache:
        model = nnx.merge(self._graph, state)
        size = tokens.shape[0]
        row = {
            name: {
                **{key: jnp.zeros((1, size, *layer[key].shape[2:]), layer[key].dtype) for key in ("k", "v")},
                "end_index": jnp.zeros((1,), jnp.int32),
            }
            for name, layer in cache.items()
        }
        causal = jnp.tril(jnp.ones((1, size, size), jnp.bool_))
        _, filled = model(tokens[None], jnp.arange(size)[None], row, causal)
        zero = jnp.int32(0)
        return {
            name: {
                key: jax.lax.dynamic_update_slice(layer[key], filled[name][key], (slot, zero, zero, zero))
                for key in ("k", "v")
            }
            for name, layer in cache.items()
        }

    def _decode_program(
        self, state: Any, cache: Cache, tokens: jax.Array, positions: jax.Array
    ) -> tuple[Cache, jax.Array]:
        model = nnx.merge(self._graph, state)

        def one(cache: Cache, token: jax.Array, position: jax.Array) -> tuple[Cache, jax.Array]:
            row = {
                name: {"k": layer["k"][None], "v": layer["v"][None], "end_index": position[None]}
                for name, layer in cache.items()
            }
            seen = (jnp.arange(self.length) <= position)[None, None, :]
            logits, new = model(token[None, None], position[None, None], row, seen)
            return {n: {k: new[n][k][0] for k in ("k", "v")} for n in cache}, logits[0, 0]

        return jax.vmap(one)(cache, tokens, positions)


def buckets(length: int, smallest: int = 32, factor: int = 4) -> list[int]:
    """Lengths that prompts are padded to: few, since each is a compiled program."""
    sizes = []
    size = min(smallest, length)
    while size < length:
        sizes.append(size)
        size *= factor
    return [*sizes, length]
