"""What makes a comparison of two runs dishonest, each with its reason.

`refuse` means that the two did different work, so that a ratio of their times says nothing;
`flag` means that the ratio stands but a reader must know something beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.prices import fits
from tunewright_workloads.contract.report import RunReport

MIN_REQUESTS = {"p50": 20, "p90": 100, "p99": 1000}
"""Requests below which a percentile is an anecdote: ten beyond it on the thin side."""


@dataclass(frozen=True)
class Finding:
    """One difference. `a` and `b` are what the two reports say."""

    severity: Literal["refuse", "flag"]
    what: str
    a: str
    b: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.a} against {self.b}. {self.why}"


def runs(a: RunReport, b: RunReport) -> list[Finding]:
    """Every finding about two training runs, refusals first."""
    return _sorted([*_work(a, b), *_recipe(a, b), *_circumstances(a, b)])


def benches(a: BenchReport, b: BenchReport) -> list[Finding]:
    """Every finding about two load tests, refusals first."""
    return _sorted(_benches(a, b))


def _sorted(findings: Iterator[Finding] | list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: f.severity != "refuse")


def _differs(
    severity: Literal["refuse", "flag"], what: str, a: Any, b: Any, why: str, tolerance: float = 0.0
) -> Iterator[Finding]:
    if a == b:
        return
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    if numbers and abs(a - b) <= tolerance * max(abs(a), abs(b)):
        return
    yield Finding(severity, what, _short(a), _short(b), why)


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _work(a: RunReport, b: RunReport) -> Iterator[Finding]:
    """Was it the same work?"""
    d, e = a.data, b.data
    yield from _differs(
        "refuse",
        "steps",
        a.training.steps,
        b.training.steps,
        "Wall-clock of different numbers of steps is no speed-up.",
    )
    yield from _differs("refuse", "dataset", d.digest, e.digest, "The files trained on are not the same.")
    yield from _differs(
        "refuse",
        "chat template",
        d.template_digest,
        e.template_digest,
        "The same rows render to other tokens.",
    )
    yield from _differs(
        "refuse", "useful tokens", d.tokens_useful, e.tokens_useful, "One run read more text than the other."
    )
    if d.tokens_useful == e.tokens_useful:
        yield from _differs(
            "refuse",
            "token order",
            d.token_digest,
            e.token_digest,
            "As many tokens, but not the same ones in the same order.",
        )
    yield from _differs(
        "refuse",
        "trained tokens",
        d.tokens_trained,
        e.tokens_trained,
        "The loss covers other amounts of text.",
    )
    if d.tokens_trained == e.tokens_trained:
        yield from _differs(
            "refuse",
            "loss mask",
            d.mask_digest,
            e.mask_digest,
            f"The loss is on other tokens ({d.loss_on} and {e.loss_on}).",
        )
    yield from _differs(
        "refuse", "base model", a.model.digest, b.model.digest, "The frozen weights are not the same."
    )
    missing, extra = (
        sorted(set(a.adapter.modules) - set(b.adapter.modules)),
        sorted(set(b.adapter.modules) - set(a.adapter.modules)),
    )
    if missing or extra:
        shown = ", ".join((missing + extra)[:3])
        yield Finding(
            "refuse", "adapter coverage", f"{len(a.adapter.modules):,} projections", f"{len(b.adapter.modules):,} projections",
            f"Adapted in one run only: {shown}{' and more' if len(missing + extra) > 3 else ''}.",
        )  # fmt: skip
    yield from _differs(
        "refuse",
        "adapter rank",
        a.adapter.rank,
        b.adapter.rank,
        "Other adapter size, other work and other capacity.",
    )
    yield from _differs(
        "refuse",
        "loss scale",
        a.training.loss_scale,
        b.training.loss_scale,
        "The two loss curves do not share an axis.",
    )


def _recipe(a: RunReport, b: RunReport) -> Iterator[Finding]:
    """Was it the same recipe? Other recipes may cost the same but do not learn the same."""
    s, t = a.training, b.training
    yield from _differs(
        "refuse",
        "global batch",
        s.global_batch_size,
        t.global_batch_size,
        "Steps of different batches are different steps.",
    )
    yield from _differs(
        "refuse",
        "quantized base",
        a.precision.base,
        b.precision.base,
        "The base is held in other precision: other memory traffic, other result.",
    )
    yield from _differs(
        "refuse",
        "compute precision",
        a.precision.compute,
        b.precision.compute,
        "Matmuls of other precision run at another peak rate.",
    )
    yield from _differs(
        "flag",
        "adapter precision",
        a.precision.adapter,
        b.precision.adapter,
        "Small updates may be rounded away in one of them.",
    )
    yield from _differs(
        "flag",
        "optimizer precision",
        a.precision.moments,
        b.precision.moments,
        "Moments are rounded differently.",
    )
    yield from _differs("flag", "alpha", a.adapter.alpha, b.adapter.alpha, "The same time, another result.")
    yield from _differs(
        "flag", "dropout", a.adapter.dropout, b.adapter.dropout, "The same time, another result."
    )
    yield from _differs(
        "flag", "learning rate", s.learning_rate, t.learning_rate, "The same time, another result."
    )
    yield from _differs(
        "flag",
        "schedule",
        f"{s.schedule}, {s.warmup_steps} warm-up",
        f"{t.schedule}, {t.warmup_steps} warm-up",
        "The same time, another result.",
    )
    yield from _differs(
        "flag", "weight decay", s.weight_decay, t.weight_decay, "The same time, another result."
    )
    yield from _differs(
        "flag", "gradient clipping", s.max_grad_norm, t.max_grad_norm, "The same time, another result."
    )
    yield from _differs("flag", "seed", s.seed, t.seed, "Other initial adapter or other order.")


def _circumstances(a: RunReport, b: RunReport) -> Iterator[Finding]:
    """Was it measured alike?"""
    yield from _differs(
        "flag",
        "packing",
        a.data.packing,
        b.data.packing,
        "One run computes padding that the other does not: compare useful tokens a second.",
    )
    if {a.time.cache, b.time.cache} & {
        "warm",
        "unknown",
    }:  # cold beside a program that compiles nothing is fair
        yield from _differs(
            "flag",
            "compile cache",
            a.time.cache,
            b.time.cache,
            "One run's wall clock may hold compilation that the other's does not.",
        )
    yield from _differs(
        "flag",
        "price model",
        a.hardware.price.model,
        b.hardware.price.model,
        "Dollars of different purchase models are no hardware comparison.",
    )
    for name, run in (("first", a), ("second", b)):
        if run.hardware.chips and not fits(run.hardware.mode, run.hardware.price.model):
            yield Finding(
                "flag", f"price of the {name} run", run.hardware.mode, run.hardware.price.model,
                "Its nodes were obtained otherwise than they are priced: its dollars are not what it cost.",
            )  # fmt: skip
    yield from _differs(
        "flag", "price date", a.hardware.price.date, b.hardware.price.date, "List prices of different days."
    )
    if max(a.attempts, b.attempts) > 1:
        yield from _differs("flag", "attempts", a.attempts, b.attempts, "Wall clock holds restarts.")
    for name, run in (("first", a), ("second", b)):
        losses = [p.step for p in run.loss]
        if losses != list(range(1, run.training.steps + 1)):
            yield Finding(
                "flag", f"loss curve of the {name} run", f"{len(losses):,} points", f"{run.training.steps:,} steps",
                "A thinned or smoothed curve is not comparable point by point.",
            )  # fmt: skip


def _benches(a: BenchReport, b: BenchReport) -> Iterator[Finding]:
    yield from _differs(
        "refuse", "input length", a.input_tokens, b.input_tokens, "Other prompts, other prefill."
    )
    yield from _differs(
        "refuse", "output length", a.output_tokens, b.output_tokens, "Other answers, other decode."
    )
    if a.model_digest and b.model_digest:
        yield from _differs(
            "refuse",
            "served model",
            a.model_digest,
            b.model_digest,
            "The two endpoints do not serve the same weights.",
        )
    else:
        yield Finding(
            "flag",
            "served model",
            str(a.model_digest),
            str(b.model_digest),
            "It is not known whether both serve the same weights.",
        )
    rates_a, rates_b = [p.rate for p in a.points], [p.rate for p in b.points]
    if not set(rates_a) & set(rates_b):
        yield Finding("refuse", "rates", str(rates_a), str(rates_b), "No offered rate is common to both.")
    yield from _differs(
        "flag",
        "KV cache",
        a.kv_cache_dtype,
        b.kv_cache_dtype,
        "Other precision of the cache: other capacity, other accuracy.",
    )
    yield from _differs("flag", "weights", a.dtype, b.dtype, "Other precision of the weights.")
    for name, bench in (("first", a), ("second", b)):
        if not bench.unique_prompts:
            yield Finding(
                "refuse",
                f"prompts of the {name} bench",
                "shared prefixes",
                "unique prompts needed",
                "A prefix cache may have answered: TTFT is then no prefill time.",
            )
        for point in bench.points:
            at = f"{name} bench at {point.rate:g}/s"
            if point.under_floor:
                yield Finding(
                    "refuse", f"TTFT, {at}", f"{point.under_floor} under the floor", f"{point.floor_ms:.1f} ms",
                    "A first token cannot come before the prompt's FLOP at peak rate: something was cached.",
                )  # fmt: skip
            if point.requests < MIN_REQUESTS["p50"]:
                yield Finding(
                    "refuse",
                    f"requests, {at}",
                    str(point.requests),
                    f"{MIN_REQUESTS['p50']} at least",
                    "Too few to say anything of a median.",
                )
            if point.ttft.p99 is not None and point.requests < MIN_REQUESTS["p99"]:
                yield Finding(
                    "refuse",
                    f"p99, {at}",
                    f"{point.requests} requests",
                    f"{MIN_REQUESTS['p99']} at least",
                    "A p99 of so few is the worst one or two requests.",
                )
            if point.errors:
                yield Finding(
                    "flag",
                    f"errors, {at}",
                    str(point.errors),
                    f"of {point.requests}",
                    "Failed requests have no latency: the percentiles flatter it.",
                )
