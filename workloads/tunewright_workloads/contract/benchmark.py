"""The record of one load test against an OpenAI endpoint. Milliseconds, tokens, requests a second."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tunewright_workloads.contract.report import HardwareRecord

SCHEMA = "tunewright.dev/bench/v1"


class _Record(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Percentiles(_Record):
    """Of one latency, in milliseconds. A percentile that the sample is too small for is None."""

    mean: float
    p50: float
    p90: float | None = None
    p99: float | None = None


class RatePoint(_Record):
    """One measurement at one offered rate (open loop, Poisson arrivals)."""

    rate: float = Field(gt=0, description="Offered, requests a second")
    requests: int = Field(ge=1, description="Measured ones, warm-up apart")
    errors: int = Field(0, ge=0)
    seconds: float = Field(gt=0)
    input_tokens: int = Field(ge=0, description="Over all measured requests, counted by the server")
    output_tokens: int = Field(ge=0)
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles | None = None
    goodput: float | None = Field(None, description="Requests a second within the SLO")
    floor_ms: float | None = Field(None, description="Prefill FLOP of one prompt at the slice's peak")
    under_floor: int = Field(0, ge=0, description="Requests whose first token came before the floor")


class BenchReport(_Record):
    """The whole load test."""

    schema_: str = Field(SCHEMA, alias="schema")
    model: str
    model_digest: str | None = Field(None, description="sha256 of the served tunewright.json")
    engine: str
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    hardware: HardwareRecord
    input_tokens: int = Field(ge=1, description="asked for, each prompt")
    output_tokens: int = Field(ge=1, description="asked for, each answer")
    warmup: int = Field(0, ge=0, description="requests sent before the measurement")
    unique_prompts: bool = Field(description="No two prompts share a prefix, so that no prefix cache can hit")
    seed: int = 42
    slo: dict[str, float] = Field(default_factory=dict)
    points: list[RatePoint] = Field(min_length=1)

    def results(self) -> list[dict[str, Any]]:
        """One entry a rate in the shape of `status.benchmark.results`: seconds, without what is unknown."""
        found = []
        for p in self.points:
            entry = {
                "rate": p.rate,
                "requestsPerSecond": (p.requests - p.errors) / p.seconds,
                "outputTokensPerSecond": p.output_tokens / p.seconds,
                "ttftP50": p.ttft.p50 / 1e3,
                "ttftP99": None if p.ttft.p99 is None else p.ttft.p99 / 1e3,
                "itlP50": None if p.itl is None else p.itl.p50 / 1e3,
                "itlP99": None if p.itl is None or p.itl.p99 is None else p.itl.p99 / 1e3,
                "failed": p.errors,
            }
            found.append({name: value for name, value in entry.items() if value is not None})
        return found

    def peak_tokens_per_second(self) -> float:
        """The best output rate over the sweep."""
        return max(p.output_tokens / p.seconds for p in self.points)
