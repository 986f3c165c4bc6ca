"""What transformers (PyTorch, float32, CPU) says of a checkpoint: the reference of the serving tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Generation:
    """Greedy tokens and their log-probabilities."""

    tokens: list[int]
    logprobs: list[float]


class Reference:
    """A text decoder in transformers. Skips the test, with the reason, where there is no PyTorch."""

    def __init__(self, directory: Path) -> None:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        torch.set_num_threads(2)
        self._torch = torch
        auto: Any = transformers.AutoModelForCausalLM
        self._model = auto.from_pretrained(directory, dtype=torch.float32).eval()

    def greedy(self, prompt: list[int], count: int) -> Generation:
        """`count` tokens without any stop token, recomputed from the start each time: no cache to be wrong."""
        torch = self._torch
        tokens, logprobs = list(prompt), []
        with torch.no_grad():
            for _ in range(count):
                logits = self._model(torch.tensor([tokens]), use_cache=False).logits[0, -1].double()
                logprob = torch.log_softmax(logits, -1)
                best = int(torch.argmax(logits))
                tokens.append(best)
                logprobs.append(float(logprob[best]))
        return Generation(tokens[len(prompt) :], logprobs)
