"""Records what a finished model generates, for the gate that later asks its server the same.

Run by the merge, on the finished model, in float32: by the programs of the small engine where the
model fits in memory (`record`), else layer by layer (`streamed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.data import tokenizer
from tunewright_workloads.data.tokenizer import Tokenizer
from tunewright_workloads.gemma import architecture, names
from tunewright_workloads.serve.sampling import log_softmax

if TYPE_CHECKING:
    from tunewright_workloads.serve.streamed import Weights

QUESTIONS = (
    "Hello!",
    "What can you do for me?",
    "Write one sentence about the sea.",
    "Which is larger, 7 or 12, and why?",
    "Translate 'good morning' into French.",
    "How do I cook rice?",
    "List three colors.",
    "Why is the sky blue?",
)
TOKENS = 12
VOCABULARY = 16384
"""Rows of the tied table that a streamed pass multiplies at a time."""
PLACES = 4
"""Places in a question that are probed when the model is read from disk once."""
PAST_WINDOW = 24
"""Tokens by which the last prompt is longer than the sliding window, so that both masks are probed."""


def record(directory: Path) -> list[Probe]:
    """Greedy tokens and log-probabilities of a few prompts. Holds the whole model in float32: the
    caller sees to it that it fits."""
    found = prompts(directory)
    length = max(len(tokens) for _, tokens in found) + TOKENS
    from tunewright_workloads.serve.runner import Runner

    runner = Runner(
        directory, slots=len(found), length=length, param_dtype="float32", compute_dtype="float32"
    )
    for slot, (_, tokens) in enumerate(found):
        runner.prefill(slot, tokens[:-1])
    last = np.array([tokens[-1] for _, tokens in found], np.int32)
    positions = np.array([len(tokens) - 1 for _, tokens in found], np.int32)
    generated: list[list[int]] = [[] for _ in found]
    logprobs: list[list[float]] = [[] for _ in found]
    for _ in range(TOKENS):
        logits = runner.decode(last, positions)
        last, positions = logits.argmax(-1).astype(np.int32), positions + 1
        for slot, token in enumerate(last):
            generated[slot].append(int(token))
            logprobs[slot].append(float(log_softmax(logits[slot])[token]))
    # Tokens after an end of turn are as good a probe as any: the gate asks for them with ignore_eos.
    return [
        Probe(prompt=text, prompt_tokens=tokens, tokens=generated[slot], logprobs=logprobs[slot])
        for slot, (text, tokens) in enumerate(found)
    ]


def memory(arch: architecture.Architecture, width: int) -> float:
    """bytes that `streamed` holds of weights of `width` bytes: the largest layer, one matrix of it in
    float32 beside it, or a slice of the vocabulary."""
    leaves = names.leaves(arch).values()
    sizes = {leaf.path: math.prod(leaf.shape) for leaf in leaves if leaf.path.startswith("layers.")}
    layers = [
        sum(n for path, n in sizes.items() if path.startswith(f"layers.{i}.")) for i in range(arch.layers)
    ]
    return max(layers) * width * 2 + max(sizes.values()) * 4 + VOCABULARY * arch.embed * (width + 4)


def streamed(small: Path, weights: Weights, say: Callable[[int, int], None] | None = None) -> list[Probe]:
    """The next token and its log-probability at a few places of each question, from one pass over the
    weights with one layer in memory.

    small: the directory with configuration and tokenizer. weights: the checkpoint, here or far away.
    """
    from tunewright_workloads.serve.streamed import Streamed

    words = tokenizer.load(small)
    rows = [words.encode(text) for text in _questions(words)]
    # Where the prefix's text is tokenized to the same prefix again, or a server could not be asked for it.
    places = [
        [
            n - 1
            for n in sorted({len(row) * q // PLACES for q in range(1, PLACES + 1)})
            if n and _stable(words, row[:n])
        ]
        for row in rows
    ]
    found = Streamed(architecture.read(small), weights, say).next(rows, places)
    return [
        Probe(
            prompt=words.decode(row[: at + 1], skip_special_tokens=False),
            prompt_tokens=row[: at + 1],
            tokens=[following.token],
            logprobs=[following.logprob],
        )
        for row, ats, nexts in zip(rows, places, found, strict=True)
        for at, following in zip(ats, nexts, strict=True)
    ]


def _stable(words: Tokenizer, tokens: list[int]) -> bool:
    return words.encode(words.decode(tokens, skip_special_tokens=False)) == tokens


def _questions(words: Tokenizer) -> list[str]:
    """The questions by the checkpoint's own chat template; bare where it has none."""
    if words.template is None:
        return [words.bos_token + question for question in QUESTIONS]
    return [words.render_chat([{"role": "user", "content": q}], True) for q in QUESTIONS]


def prompts(directory: Path) -> list[tuple[str, list[int]]]:
    """(text, ids) of the prompts: the questions, and a text longer than the model's sliding window."""
    words = tokenizer.load(directory)
    arch = architecture.read(directory)
    texts = _questions(words)
    room = max(8, min(arch.window + PAST_WINDOW, arch.max_positions - TOKENS))
    long = words.encode(words.bos_token + " ".join(QUESTIONS * (room // 8)))[:room]
    # Text and ids must agree when a server encodes the text again, which a cut in a word would not.
    while len(long) > 1 and not _stable(words, long):
        long.pop()
    texts.append(words.decode(long, skip_special_tokens=False))
    return [(text, words.encode(text)) for text in texts]
