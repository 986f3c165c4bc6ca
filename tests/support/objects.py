"""Fluent builders of what the API server would say: pods, Jobs, JobSets."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, Self

Object = dict[str, Any]
START = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """So many minutes after the tests' hour."""
    return START + timedelta(minutes=minutes)


def stamp(minutes: float) -> str:
    return at(minutes).strftime("%Y-%m-%dT%H:%M:%SZ")


class Built:
    """A builder holds the object; each step returns a new builder."""

    def __init__(self, body: Object) -> None:
        self.body = body

    def _with(self, **changes: Any) -> Self:
        body = deepcopy(self.body)
        for path, value in changes.items():
            part = body
            *parents, last = path.split("__")
            for name in parents:
                part = part.setdefault(name, {})
            part[last] = value
        return type(self)(body)

    @property
    def slim(self) -> Object:
        """As the cache keeps it."""
        from tunewright_operator.reconcile import cache, resources

        return cache.slim(resources.of(self.body), self.body)


class Pod(Built):
    """A pod of a stage."""

    @classmethod
    def of(cls, name: str = "bot-train-x", stage: str = "train", index: int = 0, created: float = 0) -> Pod:
        labels = {
            "tunewright.dev/stage": stage,
            "tunewright.dev/uid": "u1",
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        meta = {
            "name": name,
            "namespace": "team",
            "uid": name,
            "labels": labels,
            "creationTimestamp": stamp(created),
        }
        container = {"name": stage, "resources": {"requests": {"google.com/tpu": "4"}}}
        return cls(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta,
                "spec": {"containers": [container]},
                "status": {"phase": "Pending"},
            }
        )

    def _container(self, state: Object, **more: Any) -> Object:
        return {"name": self.body["spec"]["containers"][0]["name"], "state": state, **more}

    def unschedulable(self, message: str = "0/3 nodes are available") -> Pod:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return self._with(status__conditions=[condition])

    def waiting(self, reason: str, message: str = "") -> Pod:
        state = {"waiting": {"reason": reason, "message": message}}
        return self._with(status__containerStatuses=[self._container(state)], status__startTime=stamp(0))

    def running(self, start: float = 0) -> Pod:
        state = {"running": {"startedAt": stamp(start)}}
        return self._with(
            status__phase="Running",
            status__startTime=stamp(start),
            status__containerStatuses=[self._container(state)],
        )

    def succeeded(self, start: float = 0, end: float = 10) -> Pod:
        state = {"terminated": {"exitCode": 0, "finishedAt": stamp(end)}}
        return self._with(
            status__phase="Succeeded",
            status__startTime=stamp(start),
            status__containerStatuses=[self._container(state)],
        )

    def failed(
        self, code: int, start: float = 0, end: float = 10, reason: str = "Error", message: str = ""
    ) -> Pod:
        state = {
            "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": stamp(end)}
        }
        return self._with(
            status__phase="Failed",
            status__startTime=stamp(start),
            status__containerStatuses=[self._container(state)],
        )

    def rejected(self, reason: str = "UnexpectedAdmissionError", message: str = "no healthy devices") -> Pod:
        """Refused by the kubelet: no container was made, so there is no exit code and no condition."""
        return self._with(
            status__phase="Failed", status__reason=reason, status__message=message, status__startTime=stamp(0)
        )

    def disrupted(self, reason: str = "DeletionByTaintManager", message: str = "node goes away") -> Pod:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        return self._with(status__phase="Failed", status__conditions=[condition])

    def evicted(self, message: str) -> Pod:
        return self.disrupted("TerminationByKubelet", message)._with(
            status__reason="Evicted", status__message=message
        )


class Job(Built):
    """A stage's Job."""

    @classmethod
    def of(cls, stage: str = "train", name: str = "bot-train") -> Job:
        labels = {"tunewright.dev/stage": stage, "tunewright.dev/uid": "u1"}
        meta = {"name": name, "namespace": "team", "uid": f"job-{stage}", "labels": labels}
        return cls(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": meta,
                "spec": {"suspend": False},
                "status": {},
            }
        )

    def queued(self, queue: str) -> Job:
        body = deepcopy(self.body)
        body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue
        return Job(body)._with(spec__suspend=True)

    def suspended(self) -> Job:
        return self._with(spec__suspend=True)

    def complete(self) -> Job:
        return self._with(status__conditions=[{"type": "Complete", "status": "True"}], status__succeeded=1)

    def failed(self, reason: str = "BackoffLimitExceeded", message: str = "it failed") -> Job:
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        return self._with(status__conditions=[condition])

    def deleting(self) -> Job:
        return self._with(metadata__deletionTimestamp=stamp(0))
