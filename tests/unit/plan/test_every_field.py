"""No field of a spec is parsed and ignored: changing it changes the plan, or the operator uses it itself."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import BaseModel

from support import specs
from tunewright_operator import api, plan
from tunewright_operator.plan import OPERATOR_FIELDS

JOB_BASE: dict[str, Any] = {
    "spec.model": {"name": "gemma-4-e4b", "source": "hf://a/b", "tokenSecretRef": {"name": "s", "key": "k"}},
    "spec.dataset.validation": ["gs://acme/v.jsonl"],
    "spec.training": {"steps": 100, "globalBatchSize": 16},
    "spec.accelerator.provisioning": {"mode": "computeClass", "name": "c"},
    "spec.queue": {"name": "q"},
    "spec.evaluation": {"maxEvalLoss": 1.0},
    "spec.limits": {"runTime": "1h", "costUSD": 10.0},
    "spec.ttlSecondsAfterFinished": 60,
    "spec.podTemplate.tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}],
    "spec.podTemplate.env": [{"name": "A", "value": "1"}],
}

JOB_CHANGES: dict[str, Any] = {
    "model.name": "gemma-4-31b",
    "model.source": "hf://c/d",
    "model.revision": "v2",
    "model.tokenSecretRef.name": "t",
    "model.tokenSecretRef.key": "l",
    "dataset.train": ["gs://acme/other.jsonl"],
    "dataset.validation": ["gs://acme/w.jsonl"],
    "dataset.format": "messages",
    "dataset.maxLength": 512,
    "dataset.overlong": "fail",
    "dataset.packing": False,
    "dataset.lossOn": "all",
    "dataset.thinking": True,
    "adapter.rank": 32,
    "adapter.alpha": 99.0,
    "adapter.dropout": 0.1,
    "adapter.targets": ["q_proj"],
    "adapter.quantizeBase": "int8",
    "training.steps": 50,
    "training.epochs": ({"training.steps": None}, 2.0),
    "training.globalBatchSize": 32,
    "training.microBatchSize": 8,
    "training.learningRate": 5e-5,
    "training.schedule": "linear",
    "training.warmupSteps": 7,
    "training.weightDecay": 0.1,
    "training.maxGradNorm": 0.5,
    "training.remat": "block",
    "training.seed": 1,
    "accelerator.type": ({"accelerator.type": "v5e", "accelerator.topology": "4x4"}, "v6e"),
    "accelerator.topology": "2x2x2",
    "accelerator.chipsPerHost": ({"accelerator.type": "v6e", "accelerator.topology": "2x4"}, 4),
    "accelerator.count": (
        {
            "accelerator.type": "h100",
            "accelerator.topology": None,
            "evaluation": None,
            "output.uri": "pvc://models/out",
        },
        2,
    ),
    "accelerator.mesh": {"fsdp": 2, "tp": 2},
    "accelerator.provisioning.mode": "reservation",
    "accelerator.provisioning.name": "d",
    "queue.name": "r",
    "checkpoint.everySteps": 10,
    "checkpoint.keep": 1,
    "output.uri": "gs://acme/elsewhere",
    "output.merge": ({"evaluation": None}, False),
    "output.dtype": "keep",
    "evaluation.maxEvalLoss": 0.5,
    "limits.runTime": "2h",
    "limits.costUSD": 20.0,
    "limits.retries": 10,
    "suspend": ({"queue": None}, True),
    "ttlSecondsAfterFinished": 120,
    "serviceAccountName": "trainer",
    "podTemplate.labels": {"a": "b"},
    "podTemplate.annotations": {"a": "b"},
    "podTemplate.nodeSelector": {"a": "b"},
    "podTemplate.tolerations": [{"key": "z", "operator": "Exists"}],
    "podTemplate.env": [{"name": "B", "value": "1"}],
    "podTemplate.resources.requests": {"memory": "9Gi"},
    "podTemplate.resources.limits": {"memory": "9Gi"},
}

ENDPOINT_BASE: dict[str, Any] = {
    "spec.model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "s", "key": "k"}},
    "spec.compileCache": {"pvc": "c"},
    "spec.accelerator.provisioning": {"mode": "computeClass", "name": "c"},
    "spec.benchmark": {},
}

ENDPOINT_CHANGES: dict[str, Any] = {
    "model.fineTuneJobRef.name": ({"model": {}}, "support-bot"),
    "model.uri": "hf://c/d",
    "model.revision": "v2",
    "model.tokenSecretRef.name": "t",
    "model.tokenSecretRef.key": "l",
    "model.servedName": "bot",
    "accelerator.type": "v5e",
    "accelerator.topology": "2x2",
    "accelerator.chipsPerHost": ({"accelerator.type": "v5e", "accelerator.topology": "2x2"}, 4),
    "accelerator.count": ({"accelerator.type": "h100", "accelerator.topology": None}, 2),
    "accelerator.provisioning.mode": "reservation",
    "accelerator.provisioning.name": "d",
    "engine.name": ({"accelerator": {"type": "cpu"}}, "vllm"),
    "engine.image": "mine",
    "engine.maxModelLength": 4096,
    "engine.maxBatchedTokens": 8192,
    "engine.kvCacheDtype": "fp8",
    "engine.extraArgs": ["--max-logprobs=5"],
    "replicas": 2,
    "autoscaling.min": ({"autoscaling": {"max": 4}}, 2),
    "autoscaling.max": ({"autoscaling": {"max": 4}}, 5),
    "autoscaling.targetWaitingRequests": ({"autoscaling": {"max": 4}}, 5),
    "rollout.strategy": "blueGreen",
    "rollout.gate": False,
    "compileCache.pvc": "d",
    "drainSeconds": 5,
    "benchmark.inputTokens": 5,
    "benchmark.outputTokens": 5,
    "benchmark.rates": [2.0],
    "benchmark.requests": 5,
    "benchmark.warmup": 5,
    "serviceAccountName": "server",
    "podTemplate.labels": {"a": "b"},
    "podTemplate.annotations": {"a": "b"},
    "podTemplate.nodeSelector": {"a": "b"},
    "podTemplate.tolerations": [{"key": "z", "operator": "Exists"}],
    "podTemplate.env": [{"name": "B", "value": "1"}],
    "podTemplate.resources.requests": {"memory": "9Gi"},
    "podTemplate.resources.limits": {"memory": "9Gi"},
}

SAME_WITHOUT = {
    "accelerator.chipsPerHost": "single host 2x2 has four chips in any case",
}
"""Fields whose only allowed value can be the default: what is asked for is then already so."""

LEAVES = {"Mesh"}
"""Sections that stand as one value."""


def leaves(kind: type[BaseModel], prefix: str = "") -> set[str]:
    """Paths of all fields below a section; lists and maps are one field."""
    found: set[str] = set()
    for name, info in kind.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        inner = next(
            (
                a
                for a in (info.annotation, *getattr(info.annotation, "__args__", ()))
                if isinstance(a, type) and issubclass(a, BaseModel) and a.__name__ not in LEAVES
            ),
            None,
        )
        listed = getattr(info.annotation, "__origin__", None) in (list, dict)
        found |= leaves(inner, f"{path}.") if inner and not listed else {path}
    return found


def shape(made: plan.Plan) -> str:
    """Everything of a plan but its notes."""
    data = dataclasses.asdict(dataclasses.replace(made, stages=(), notes=()))
    data["stages"] = [[s.name, list(s.manifests), s.create_only, s.artifact] for s in made.stages]
    return json.dumps(data, sort_keys=True)


def varied(base: dict[str, Any], field: str, change: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes without and with the field's new value. A tuple brings what it needs along."""
    needs, value = change if isinstance(change, tuple) else ({}, change)
    before = {**base, **{f"spec.{k}": v for k, v in needs.items()}}
    return before, {**before, f"spec.{field}": value}


def test_the_tables_hold_every_field():
    assert leaves(api.FineTuneJobSpec) == set(JOB_CHANGES)
    assert leaves(api.ServeEndpointSpec) == set(ENDPOINT_CHANGES)


@pytest.mark.parametrize("field", JOB_CHANGES)
def test_every_field_of_a_job_changes_its_plan(field):
    before, after = varied(JOB_BASE, field, JOB_CHANGES[field])
    changed = shape(plan.job(specs.job(before))) != shape(plan.job(specs.job(after)))
    assert changed != (field in OPERATOR_FIELDS)


@pytest.mark.parametrize("field", set(ENDPOINT_CHANGES) - set(SAME_WITHOUT))
def test_every_field_of_an_endpoint_changes_its_plan(field):
    before, after = varied(ENDPOINT_BASE, field, ENDPOINT_CHANGES[field])
    job = specs.job({"spec.model.name": "gemma-4-e4b"})
    if field == "model.fineTuneJobRef.name":
        before["spec.model"] = {"uri": "gs://somewhere/else"}
    one = plan.endpoint(specs.endpoint(before), job=job)
    other = plan.endpoint(specs.endpoint(after), job=job)
    assert shape(one) != shape(other)
