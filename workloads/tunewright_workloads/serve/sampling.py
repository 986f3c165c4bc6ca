"""Choosing the next token from its logits, on the host, with each request's own parameters.

NumPy and not JAX: every request may ask for something else, and a compiled function per
combination would cost more than the choice itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How one request wants its tokens. temperature 0 is greedy; top_k 0 is all."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0


@dataclass(frozen=True)
class Sampled:
    """One token, its log-probability (nats, of the model itself, before temperature and top-p),
    and the most likely alternatives as (token, logprob), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """State of one request: its random numbers and what it has generated."""

    def __init__(self, sampling: Sampling, stop_tokens: frozenset[int] = frozenset()) -> None:
        self.sampling = sampling
        self._stop_tokens = sorted(stop_tokens)
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))
        self._counts: Counter[int] = Counter()

    def choose(self, logits: np.ndarray, top: int | None = None) -> Sampled:
        """The next token for `logits` (vocab,) f32.

        `top`: how many alternatives to report; None spares the log-probabilities (reported as nan).
        """
        s = self.sampling
        scores = self._adjusted(logits)
        token = int(np.argmax(scores)) if s.temperature == 0 else self._draw(scores)
        self._counts[token] += 1
        if top is None:
            return Sampled(token, float("nan"))
        logprobs = log_softmax(logits)
        best: tuple[tuple[int, float], ...] = ()
        if top:
            size = min(top, logprobs.size)
            some = np.argpartition(-logprobs, size - 1)[:size]
            ordered = some[np.lexsort((some, -logprobs[some]))]
            best = tuple((int(i), float(logprobs[i])) for i in ordered)
        return Sampled(token, float(logprobs[token]), best)

    def _adjusted(self, logits: np.ndarray) -> np.ndarray:
        s = self.sampling
        early = sum(self._counts.values()) < s.min_tokens
        if not (s.presence_penalty or s.frequency_penalty or s.logit_bias or early):
            return logits
        scores = logits.astype(np.float64)
        for token, count in self._counts.items():
            scores[token] -= s.presence_penalty + s.frequency_penalty * count
        for token, bias in s.logit_bias.items():
            scores[token] += bias
        if early:
            scores[self._stop_tokens] = -np.inf
        return scores

    def _draw(self, scores: np.ndarray) -> int:
        """One token from softmax(scores / temperature), cut to top_k and to the nucleus of top_p."""
        s = self.sampling
        if s.top_p >= 1 and not s.top_k:
            return int(self._random.choice(scores.size, p=_softmax(scores / s.temperature)))
        size = min(s.top_k or scores.size, scores.size)
        kept = np.argpartition(-scores, size - 1)[:size] if size < scores.size else np.arange(scores.size)
        kept = kept[np.lexsort((kept, -scores[kept]))]
        weights = _softmax(scores[kept] / s.temperature)
        # A token belongs to the nucleus while what comes before it does not yet fill top_p.
        inside = np.cumsum(weights) - weights < s.top_p
        inside[0] = True
        kept, weights = kept[inside], weights[inside]
        return int(self._random.choice(kept, p=weights / weights.sum()))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities (vocab,) f64, nats."""
    shifted = logits.astype(np.float64) - np.max(logits)
    return shifted - np.log(np.sum(np.exp(shifted)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores.astype(np.float64) - np.max(scores))
    return weights / weights.sum()
