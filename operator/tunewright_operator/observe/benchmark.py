"""A benchmark's report -> the figures that stand in an endpoint's status."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tunewright_operator.api.endpoint import BenchmarkResult
from tunewright_workloads.contract.benchmark import BenchReport, Percentiles, RatePoint

Object = dict[str, Any]


def figures(text: str) -> Object | None:
    """`digest` and `results` of a report; None for what is no report of ours.

    The report counts in milliseconds, the status in seconds.
    """
    try:
        report = BenchReport.model_validate_json(text)
    except ValidationError:
        return None
    shown: Object = {"results": [_result(point) for point in report.points]}
    if report.model_digest:
        shown["digest"] = report.model_digest
    return shown


def _result(point: RatePoint) -> Object:
    found = BenchmarkResult(
        rate=point.rate,
        requests_per_second=round((point.requests - point.errors) / point.seconds, 3),
        output_tokens_per_second=round(point.output_tokens / point.seconds, 1),
        ttft_p50=_seconds(point.ttft, "p50"),
        ttft_p99=_seconds(point.ttft, "p99"),
        itl_p50=_seconds(point.itl, "p50"),
        itl_p99=_seconds(point.itl, "p99"),
        failed=point.errors,
    )
    data: Object = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def _seconds(latency: Percentiles | None, which: str) -> float | None:
    value = getattr(latency, which) if latency else None
    return None if value is None else round(value / 1000, 4)
