"""An honest pair of training and serving reports; tests make them dishonest one field at a time."""

from __future__ import annotations

from typing import Any

from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.report import RunReport

STEPS = 20


def hardware(kind: str, chips: int) -> dict[str, Any]:
    return {"type": kind, "chips": chips, "price": accelerator(kind).price.model_dump()}


def run(kind: str = "v5p", chips: int = 4, seconds: float = 12024.0, program: str = "jax") -> RunReport:
    """A run of 20 steps; both sides of the default pair did exactly the same work."""
    return RunReport.model_validate(
        {
            "job": f"team/{kind}",
            "program": program,
            "model": {"name": "gemma-4-31b", "source": "hf://google/gemma-4-31B-it", "digest": "a" * 64, "params": 30_697_000_000},
            "adapter": {
                "rank": 64, "alpha": 64, "targets": ["q_proj", "k_proj"], "params": 1000,
                "modules": [f"layers.{i}.self_attn.{m}_proj" for i in range(60) for m in "qk"],
            },
            "data": {
                "digest": "b" * 64, "templateDigest": "c" * 64, "tokenDigest": "d" * 64, "maskDigest": "e" * 64, "rows": 10_000,
                "packing": True, "maxLength": 3072, "lossOn": "assistant", "tokensUseful": 9_000_000, "tokensTrained": 5_000_000,
                "tokensPadded": 9_200_000,
            },
            "training": {
                "steps": STEPS, "globalBatchSize": 8, "microBatchSize": 8, "learningRate": 1e-4, "schedule": "cosine", "warmupSteps": 2,
                "weightDecay": 0.0, "maxGradNorm": 1.0, "seed": 42, "epochs": 1.0,
            },
            "precision": {"base": "bfloat16", "compute": "bfloat16", "adapter": "float32", "moments": "float32"},
            "hardware": hardware(kind, chips),
            "time": {"total": seconds, "steps": seconds - 200, "stepMedian": (seconds - 200) / STEPS, "cache": "cold"},
            "loss": [{"step": i + 1, "loss": 2.0 - i / STEPS, "tokens": 250_000} for i in range(STEPS)],
        }
    )  # fmt: skip


def bench(kind: str = "v6e", chips: int = 8, ttft: float = 50.0) -> BenchReport:
    """Two rates, 1,000 unique prompts each."""
    point = {
        "requests": 1000, "seconds": 250.0, "inputTokens": 512_000, "outputTokens": 256_000,
        "ttft": {"mean": ttft, "p50": ttft, "p90": 2 * ttft, "p99": 4 * ttft}, "tpot": {"mean": 20.0, "p50": 20.0}, "floorMs": 4.3,
    }  # fmt: skip
    return BenchReport.model_validate(
        {
            "model": "support-bot", "modelDigest": "f" * 64, "engine": "vllm", "dtype": "bfloat16", "kvCacheDtype": "fp8",
            "hardware": hardware(kind, chips), "inputTokens": 512, "outputTokens": 256, "warmup": 10, "uniquePrompts": True,
            "points": [{**point, "rate": 1.0}, {**point, "rate": 4.0}],
        }
    )  # fmt: skip


def changed(record: Any, path: str, value: Any) -> Any:
    """The record with one field changed: `data.tokensUseful`, `points.0.errors`."""
    data = record.model_dump(by_alias=True)
    inner = data
    *parents, last = path.split(".")
    for part in parents:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    inner[last] = value
    return type(record).model_validate(data)
