"""Records what a finished model generates, for the gate that later asks its server the same.

Run by the merge, on the published directory, in float32 by the same programs as the small engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.data import tokenizer
from tunewright_workloads.gemma import architecture
from tunewright_workloads.serve.sampling import log_softmax

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


def prompts(directory: Path) -> list[tuple[str, list[int]]]:
    """(text, ids) of the prompts: questions by the checkpoint's own chat template, and a text longer
    than its sliding window. A checkpoint without a template is asked the bare questions."""
    words = tokenizer.load(directory)
    arch = architecture.read(directory)
    if words.template is None:
        texts = [words.bos_token + question for question in QUESTIONS]
    else:
        texts = [words.render_chat([{"role": "user", "content": q}], True) for q in QUESTIONS]
    room = max(8, min(arch.window + PAST_WINDOW, arch.max_positions - TOKENS))
    long = words.encode(words.bos_token + " ".join(QUESTIONS * (room // 8)))[:room]
    # Text and ids must agree when a server encodes the text again, which a cut in a word would not.
    while len(long) > 1 and words.encode(words.decode(long, skip_special_tokens=False)) != long:
        long.pop()
    texts.append(words.decode(long, skip_special_tokens=False))
    return [(text, words.encode(text)) for text in texts]
