"""What a plan is: stages in order, each with the manifests that make it run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tunewright_workloads.contract.configs import Config

Manifest = dict[str, Any]
"""One Kubernetes object as plain data, without status, uid or ownerReferences."""

WORKLOADS = ("Job", "JobSet", "Deployment")


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline: a workload and what it needs to run.

    manifests:   in the order in which they are applied.
    config:      the content of the workload's configuration file; None when flags say everything.
    artifact:    URI of what exists once the stage is done (a marker that is written last).
    create_only: JSON pointers of fields that are sent when the workload is created and then never
                 again, because somebody else owns them (Kueue admits a Job by `suspend`).
    """

    name: str
    manifests: tuple[Manifest, ...]
    config: Config | None = None
    artifact: str | None = None
    create_only: tuple[str, ...] = ()

    @property
    def workload(self) -> Manifest:
        """The Job, JobSet or Deployment; there is one in every stage."""
        return next(m for m in self.manifests if m["kind"] in WORKLOADS)

    @property
    def job(self) -> Manifest:
        """The specification of the Job (inside a JobSet: of its only replicated job)."""
        found = self.workload
        if found["kind"] == "JobSet":
            return found["spec"]["replicatedJobs"][0]["template"]["spec"]
        return found["spec"]

    @property
    def template(self) -> Manifest:
        """The pod template, metadata and spec."""
        return self.job["template"]

    @property
    def container(self) -> Manifest:
        """The container that does the work; helpers come after it."""
        return self.template["spec"]["containers"][0]

    @property
    def configmaps(self) -> dict[str, dict[str, str]]:
        """Content of the stage's ConfigMaps by name."""
        return {m["metadata"]["name"]: m["data"] for m in self.manifests if m["kind"] == "ConfigMap"}

    def digest(self) -> str:
        """sha256 of what the stage computes: configuration, command and environment.

        Retries, labels and images are left out: changing them does not change the result.
        """
        one = self.container
        what = [
            self.name,
            self.config.model_dump(mode="json", by_alias=True) if self.config else None,
            one["command"],
            one.get("args", []),
            one.get("env", []),
        ]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """Everything that the operator creates for one resource.

    shared: applied before the first stage (the progress ConfigMap and who may write it).
    after:  applied once the last stage's workload is there (Service, autoscaler, monitoring).
    output: URI of the model that results (a job's merged directory, else its adapter; an
            endpoint's served model).
    deadline: seconds of `limits.runTime`. Not the Job's activeDeadlineSeconds, which also counts
            the wait for a node: whoever runs the plan keeps the time.
    notes:  what a user should know and is no error.
    price:  what an hour of it costs, with the price's model, date and source; empty on ordinary nodes.
    """

    kind: str
    namespace: str
    name: str
    stages: tuple[Stage, ...]
    shared: tuple[Manifest, ...] = ()
    after: tuple[Manifest, ...] = ()
    output: str = ""
    deadline: int | None = None
    notes: tuple[str, ...] = ()
    price: str = ""

    def manifests(self) -> Iterator[Manifest]:
        """Every child, in the order in which it is applied."""
        yield from self.shared
        for stage in self.stages:
            yield from stage.manifests
        yield from self.after

    def stage(self, name: str) -> Stage:
        return next(s for s in self.stages if s.name == name)
