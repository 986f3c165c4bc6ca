"""From the outcomes of requests to the figures of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunewright_workloads.bench.load import Outcome
from tunewright_workloads.contract.accelerators import Accelerator, Slice
from tunewright_workloads.contract.benchmark import Percentiles, RatePoint
from tunewright_workloads.contract.faults import Fault, UserError

BEYOND = 2
"""Requests that must lie beyond a percentile for it to be more than the worst request's luck."""


@dataclass(frozen=True)
class Slo:
    """Milliseconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None

    def met(self, outcome: Outcome) -> bool:
        within = self.ttft is None or outcome.ttft * 1e3 <= self.ttft
        return within and (self.tpot is None or (outcome.tpot or 0.0) * 1e3 <= self.tpot)


def needed(percentile: int) -> int:
    """Requests that a percentile needs: 4 for p50, 20 for p90, 200 for p99."""
    return math.ceil(BEYOND * 100 / (100 - percentile))


def check(requests: int, percentiles: Sequence[int]) -> None:
    """Raises UserError for each percentile that `requests` are too few for."""
    faults = [
        Fault("requests", f"must be at least {needed(p)} for a p{p}", str(requests), f"Or leave p{p} out.")
        for p in percentiles
        if requests < needed(p)
    ]
    if faults:
        raise UserError(faults)


def percentile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the closest ranks, as NumPy does by default."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def percentiles(seconds: Sequence[float], sample: int) -> Percentiles | None:
    """In milliseconds; what `sample` requests are too few for is None. None without values."""
    if not seconds:
        return None

    def at(q: int) -> float | None:
        return percentile(seconds, q) * 1e3 if sample >= needed(q) else None

    mean = sum(seconds) / len(seconds) * 1e3
    return Percentiles(mean=mean, p50=percentile(seconds, 50) * 1e3, p90=at(90), p99=at(99))


def floor_ms(params: float | None, input_tokens: int, chip: Accelerator, slice_: Slice) -> float | None:
    """Milliseconds that the prefill of one prompt takes at the peak of the whole slice (2 FLOP a
    parameter and token): nothing real is faster. None where the peak or the size is unknown."""
    if params is None or not chip.peak_flops or not slice_.chips:
        return None
    return 2 * params * input_tokens / (chip.peak_flops * slice_.chips) * 1e3


def point(
    rate: float, outcomes: Sequence[Outcome], seconds: float, slo: Slo, floor: float | None
) -> RatePoint:
    """One measurement. Raises RuntimeError with the commonest error when no request succeeded."""
    good = [o for o in outcomes if o.error is None]
    if not good:
        errors = [o.error or "" for o in outcomes]
        raise RuntimeError(
            f"all {len(outcomes)} requests at {rate:g}/s failed, most with: {max(set(errors), key=errors.count)}"
        )
    ttft = percentiles([o.ttft for o in good], len(good))
    tpots = [o.tpot for o in good if o.tpot is not None]
    tpot = percentiles(tpots, len(tpots)) or Percentiles(mean=0.0, p50=0.0)
    assert ttft is not None
    has_slo = slo != Slo()
    return RatePoint(
        rate=rate,
        requests=len(outcomes),
        errors=len(outcomes) - len(good),
        seconds=seconds,
        input_tokens=sum(o.input_tokens for o in good),
        output_tokens=sum(o.output_tokens for o in good),
        ttft=ttft,
        tpot=tpot,
        itl=percentiles([gap for o in good for gap in o.gaps], len(good)),
        goodput=sum(slo.met(o) for o in good) / seconds if has_slo else None,
        floor_ms=floor,
        under_floor=0 if floor is None else sum(o.ttft * 1e3 < floor for o in good),
    )
