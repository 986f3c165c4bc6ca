"""A benchmark's report in status: seconds instead of milliseconds, nothing invented."""

from __future__ import annotations

import pytest

from tunewright_operator.observe.benchmark import figures
from tunewright_workloads.contract.accelerators import ACCELERATORS
from tunewright_workloads.contract.benchmark import BenchReport, Percentiles, RatePoint
from tunewright_workloads.contract.report import HardwareRecord


def report(**point: object) -> str:
    base = {
        "rate": 4.0,
        "requests": 200,
        "errors": 10,
        "seconds": 50.0,
        "input_tokens": 100_000,
        "output_tokens": 40_000,
        "ttft": Percentiles(mean=90.0, p50=80.0, p99=310.0),
        "tpot": Percentiles(mean=20.0, p50=19.0),
    }
    found = BenchReport(
        model="bot",
        model_digest="d" * 64,
        engine="vllm",
        hardware=HardwareRecord(type="v6e", topology="2x4", chips=8, price=ACCELERATORS["v6e"].price),
        input_tokens=512,
        output_tokens=256,
        unique_prompts=True,
        points=[RatePoint.model_validate({**base, **point})],
    )
    return found.model_dump_json(by_alias=True, exclude_none=True)


def test_rates_and_latencies_are_those_of_the_report() -> None:
    found = figures(report(itl=Percentiles(mean=21.0, p50=20.0, p99=45.0)))
    assert found == {
        "digest": "d" * 64,
        "results": [
            {
                "rate": 4.0,
                "requestsPerSecond": 3.8,
                "outputTokensPerSecond": 800.0,
                "ttftP50": 0.08,
                "ttftP99": 0.31,
                "itlP50": 0.02,
                "itlP99": 0.045,
                "failed": 10,
            }
        ],
    }


def test_a_percentile_that_the_sample_was_too_small_for_is_left_out() -> None:
    found = figures(report(ttft=Percentiles(mean=1.0, p50=1.0)))
    assert found is not None
    assert "ttftP99" not in found["results"][0]
    assert "itlP50" not in found["results"][0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"points": []}', '{"results": [{"rate": 1}]}'])
def test_what_is_no_report_of_ours_is_not_shown(text: str) -> None:
    assert figures(text) is None
