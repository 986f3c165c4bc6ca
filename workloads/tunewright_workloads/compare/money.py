"""Dollars: training once and serving for so many hours, and where two offers cross."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """One way to train and serve. `train` in $, `serve` in $ an hour, `tokens` useful in training."""

    name: str
    train: float
    serve: float
    tokens: float

    def total(self, hours: float) -> float:
        """$ to train once and serve for `hours`."""
        return self.train + hours * self.serve

    def per_million(self) -> float:
        """$ of training for a million useful tokens."""
        return self.train / (self.tokens / 1e6)


def break_even(a: Offer, b: Offer) -> float | None:
    """Hours of serving after which the one that is dearer to train has become the cheaper one.

    None when they never cross: one of them is cheaper (or equal) in both.
    """
    gap, rate = b.train - a.train, a.serve - b.serve
    if gap == 0 or rate == 0 or gap / rate < 0:
        return None
    return gap / rate
