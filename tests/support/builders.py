"""Fluent builders of resources: a test says what matters to it and nothing else.

job().named("bot").on("v6e", "4x4").set("training.steps", 10).build()
"""

from __future__ import annotations

import copy
from typing import Any, Generic, Self, TypeVar

import yaml

from tunewright_operator import api

R = TypeVar("R", api.FineTuneJob, api.ServeEndpoint)

JOB: dict[str, Any] = {
    "apiVersion": "tunewright.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "support-bot"},
    "spec": {
        "model": {"name": "gemma-4-31b"},
        "dataset": {"train": ["gs://acme/sft/train.jsonl"], "validation": ["gs://acme/sft/val.jsonl"]},
        "accelerator": {"type": "v5p", "topology": "2x2x1"},
        "output": {"uri": "gs://acme/models/support-bot"},
    },
}
"""A job with the required fields, and validation rows so that an evaluation can be added."""

ENDPOINT: dict[str, Any] = {
    "apiVersion": "tunewright.dev/v1alpha1",
    "kind": "ServeEndpoint",
    "metadata": {"name": "support-bot"},
    "spec": {
        "model": {"fineTuneJobRef": {"name": "support-bot"}},
        "accelerator": {"type": "v6e", "topology": "2x4"},
    },
}
"""An endpoint with the required fields."""


def merged(base: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386): a null deletes."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Builder(Generic[R]):
    """One resource as plain data, until `build` checks it."""

    def __init__(self, kind: type[R], data: dict[str, Any]) -> None:
        self._kind, self._data = kind, copy.deepcopy(data)

    def named(self, name: str, namespace: str | None = None) -> Self:
        return self.patch({"metadata": {"name": name, "namespace": namespace}})

    def on(self, kind: str, topology: str | None = None, **more: Any) -> Self:
        """The accelerator, all of it: `on("h100", count=2)`."""
        self._data["spec"]["accelerator"] = {"type": kind}
        return self.patch({"spec": {"accelerator": {"topology": topology, **more}}})

    def set(self, path: str, value: Any) -> Self:
        """A field below `spec` by its path: `set("training.steps", 10)`. None removes it."""
        patch: Any = value
        for key in reversed(("spec." + path).split(".")):
            patch = {key: patch}
        return self.patch(patch)

    def patch(self, patch: dict[str, Any]) -> Self:
        self._data = merged(self._data, patch)
        return self

    def data(self) -> dict[str, Any]:
        """As plain data, unchecked."""
        return copy.deepcopy(self._data)

    def text(self) -> str:
        """As YAML, unchecked."""
        return yaml.safe_dump(self._data, sort_keys=False)

    def build(self) -> R:
        """As a model. Raises UserError."""
        return api.parse(self._kind, self._data)


class JobBuilder(Builder[api.FineTuneJob]):
    def tiny(self) -> Self:
        """The tiny model on ordinary nodes, for a few steps."""
        return self.on("cpu").patch(
            {
                "spec": {
                    "model": {"name": "gemma-4-tiny"},
                    "dataset": {"train": ["sample://faq"], "validation": None, "maxLength": 128},
                    "training": {"steps": 10, "globalBatchSize": 8},
                    "output": {"uri": "pvc://claim/support-bot"},
                }
            }
        )

    def evaluated(self, max_eval_loss: float | None = None) -> Self:
        self._data["spec"]["evaluation"] = {}
        return self.set("evaluation.maxEvalLoss", max_eval_loss) if max_eval_loss is not None else self

    def queued(self, queue: str) -> Self:
        return self.set("queue.name", queue)


class EndpointBuilder(Builder[api.ServeEndpoint]):
    def of(self, job: str) -> Self:
        self._data["spec"]["model"] = {"fineTuneJobRef": {"name": job}}
        return self

    def at(self, uri: str) -> Self:
        self._data["spec"]["model"] = {"uri": uri}
        return self


def job() -> JobBuilder:
    return JobBuilder(api.FineTuneJob, JOB)


def endpoint() -> EndpointBuilder:
    return EndpointBuilder(api.ServeEndpoint, ENDPOINT)
