"""Loads a merged model into the small engine."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.data import tokenizer
from tunewright_workloads.data.chat import TURN_END, Encoder
from tunewright_workloads.serve.app import Engine
from tunewright_workloads.serve.sampling import Sampling
from tunewright_workloads.serve.scheduler import Scheduler
from tunewright_workloads.serve.text import Pieces

log = logging.getLogger(__name__)

SLOTS = 4
"""Sequences decoded together where a config says nothing: a laptop's caches are small."""

LENGTH = 4096
"""Tokens of context where a config says nothing and the model could have more: prefill of this
engine holds length x length attention scores of one layer in memory."""


class Prompts:
    """Prompts as the checkpoint's own tokenizer and template make them."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = tokenizer.load(directory)
        self._encoder = Encoder(self._tokenizer)

    @property
    def stops(self) -> frozenset[int]:
        return self._tokenizer.stop_ids

    @property
    def turn_end(self) -> frozenset[int]:
        found = self._tokenizer.control.get(TURN_END)
        return frozenset() if found is None else frozenset({found})

    def text(self, prompt: str) -> list[int]:
        return self._tokenizer.encode(prompt)

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self._encoder.prompt(messages)


def load(config: ServeConfig, directory: Path) -> Engine:
    """Reads, compiles and warms up; minutes for a large model. Raises UserError for one that it cannot serve."""
    import jax
    import jax.numpy as jnp

    from tunewright_workloads.serve.runner import Runner

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update(
            "jax_compilation_cache_dir", config.compile_cache or str(Path(config.work) / "compile-cache")
        )
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    text = _json(directory / "config.json")
    decoder = text.get("text_config", text)
    longest = int(decoder.get("max_position_embeddings", LENGTH))
    length = config.max_model_length or min(longest, LENGTH)
    if length > longest:
        raise UserError(Fault("maxModelLength", f"must be at most the model's {longest} tokens", str(length)))

    param, compute = _dtypes(config.dtype, text, decoder, directory, jax.default_backend())
    started = time.monotonic()
    runner = Runner(
        directory,
        slots=config.max_sequences or SLOTS,
        length=length,
        param_dtype=jnp.dtype(param),
        compute_dtype=jnp.dtype(compute),
    )
    log.info("weights loaded as %s, computing in %s, in %.1f s", param, compute, time.monotonic() - started)
    started = time.monotonic()
    runner.warm()
    log.info("%d programs compiled in %.1f s", len(runner.buckets) + 1, time.monotonic() - started)

    pieces = Pieces(directory / "tokenizer.json")
    generation = _json(directory / "generation_config.json", missing={})
    prompts = Prompts(directory)
    scheduler = Scheduler(runner, pieces)
    scheduler.start()
    return Engine(
        name=config.served_name,
        scheduler=scheduler,
        prompts=prompts,
        pieces=pieces,
        length=length,
        vocab=runner.vocab,
        dtype=compute,
        stop_tokens=prompts.stops,
        turn_end=prompts.turn_end,
        bos=generation.get("bos_token_id", decoder.get("bos_token_id", text.get("bos_token_id"))),
        defaults=Sampling(
            # As vLLM does: a checkpoint's own defaults stand where a request says nothing.
            temperature=float(generation.get("temperature") or 1.0),
            top_p=float(generation.get("top_p") or 1.0),
            top_k=int(generation.get("top_k") or 0),
        ),
    )


def _dtypes(
    asked: str, text: dict[str, Any], decoder: dict[str, Any], directory: Path, backend: str
) -> tuple[str, str]:
    """(of the weights, of the arithmetic). `auto`: float32 on a CPU whose memory holds the model twice
    over in it, since bfloat16 is slower there and less exact; else the checkpoint's own."""
    if asked != "auto":
        return asked, asked
    own = next((str(c[k]) for c in (decoder, text) for k in ("dtype", "torch_dtype") if c.get(k)), "bfloat16")
    if backend == "cpu":
        weights = sum(p.stat().st_size for p in directory.glob("*.safetensors"))
        as_float32 = weights * (1 if own == "float32" else 2)
        if as_float32 * 2 < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return "float32", "float32"
    return own, own


def _json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise UserError(Fault(str(path), "is missing")) from None
    except ValueError as error:
        raise UserError(Fault(str(path), f"is not JSON: {error}")) from None
    if not isinstance(value, dict):
        raise UserError(Fault(str(path), "must hold a JSON object"))
    return value
