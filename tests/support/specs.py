"""Valid resources to vary, for tests of whoever reads a spec."""

from __future__ import annotations

import copy
from typing import Any

from tunewright_operator import api

JOB: dict[str, Any] = {
    "apiVersion": "tunewright.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "support-bot", "namespace": "team"},
    "spec": {
        "model": {"name": "gemma-4-31b"},
        "dataset": {"train": ["gs://acme/sft/train.jsonl"]},
        "accelerator": {"type": "v5p", "topology": "2x2x1"},
        "output": {"uri": "gs://acme/models/support-bot"},
    },
}

ENDPOINT: dict[str, Any] = {
    "apiVersion": "tunewright.dev/v1alpha1",
    "kind": "ServeEndpoint",
    "metadata": {"name": "support-bot", "namespace": "team"},
    "spec": {
        "model": {"uri": "gs://acme/models/support-bot/merged"},
        "accelerator": {"type": "v6e", "topology": "2x4"},
    },
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with dotted paths set: {"spec.training.steps": 5}; None removes."""
    data = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        current = data
        for part in parents:
            current = current.setdefault(part, {})
        if value is None:
            current.pop(last, None)
        else:
            current[last] = copy.deepcopy(value)  # later paths may lead into it
    return data


def job(changes: dict[str, Any] | None = None, /, **spec: Any) -> api.FineTuneJob:
    """A FineTuneJob; `changes` by dotted path from the root, `spec` whole sections."""
    data = merged(JOB, changes or {})
    data["spec"] |= spec
    return api.parse(api.FineTuneJob, data)


def endpoint(changes: dict[str, Any] | None = None, /, **spec: Any) -> api.ServeEndpoint:
    data = merged(ENDPOINT, changes or {})
    data["spec"] |= spec
    return api.parse(api.ServeEndpoint, data)


TINY: dict[str, Any] = {
    "spec.model": {"name": "gemma-4-tiny"},
    "spec.dataset": {"train": ["sample://faq"], "maxLength": 128},
    "spec.accelerator": {"type": "cpu"},
    "spec.output": {"uri": "pvc://data/out"},
}
"""The changes that make JOB one that runs on any machine."""

GPU: dict[str, Any] = {
    "spec.model.name": "gemma-4-e4b",
    "spec.accelerator": {"type": "h100", "count": 2},
    "spec.output.uri": "pvc://models/out",
}
"""The changes that make JOB one for GPUs."""
