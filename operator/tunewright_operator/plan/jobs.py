"""Jobs: one machine as a Job, a slice of several as a JobSet (or an Indexed Job without its CRD).

Failures are told apart by exit code and pod condition (`contract.exits`): bad input ends the Job,
preemption is retried without counting, everything else counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright_operator.plan.names import JOBSET_LIMIT, child
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.accelerators import Slice

QUEUE = "kueue.x-k8s.io/queue-name"

REPAIR_RETRIES = 6
"""Pods on a broken TPU node are rejected at admission, without an exit code or a condition, until
it is repaired: this many doubling pauses are about ten minutes."""


@dataclass(frozen=True)
class Rules:
    """What a Job needs to know besides its pods."""

    retries: int
    suspend: bool = False
    queue: str | None = None
    repairable: bool = False


def pod_failure_policy(container: str, *, recreate: bool) -> Manifest:
    """Which failures end the Job and which do not count.

    recreate: a lost pod takes the whole slice with it, so preemption fails this Job as well and
              the JobSet starts all of them again.
    """
    interruption = "FailJob" if recreate else "Ignore"

    def codes(*values: int) -> Manifest:
        return {"onExitCodes": {"containerName": container, "operator": "In", "values": list(values)}}

    return {
        "rules": [
            {"action": "FailJob", **codes(*sorted(exits.FATAL))},
            {"action": interruption, **codes(exits.PREEMPTED)},
            {
                "action": interruption,
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
        ]
    }


def workload(
    name: str, stage: str, namespace: str, labels: dict[str, str], template: Manifest, rows: Slice,
    rules: Rules, settings: Settings,
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:  # fmt: skip
    """The manifests of one stage and the fields that are sent at creation only."""
    if not rows.multi_host:
        return _single(child(name, stage), namespace, labels, template, rules)
    if settings.jobset:
        return _jobset(child(name, stage, JOBSET_LIMIT), stage, namespace, labels, template, rows, rules)
    return _indexed(child(name, stage), namespace, labels, template, rows, rules)


def _meta(name: str, namespace: str, labels: dict[str, str], rules: Rules) -> Manifest:
    queue = {QUEUE: rules.queue} if rules.queue else {}
    return {"name": name, "namespace": namespace, "labels": {**labels, **queue}}


def _suspend(rules: Rules) -> tuple[Manifest, tuple[str, ...]]:
    """Kueue admits a Job by setting `suspend` to false: from creation on the field is Kueue's."""
    if rules.queue:
        return {"suspend": True}, ("/spec/suspend",)
    return {"suspend": rules.suspend}, ()


def _attempts(rules: Rules) -> int:
    return max(rules.retries, REPAIR_RETRIES) if rules.repairable else rules.retries


def _single(
    name: str, namespace: str, labels: dict[str, str], template: Manifest, rules: Rules
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    suspend, create_only = _suspend(rules)
    spec: Manifest = {
        **suspend,
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": _attempts(rules),
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": pod_failure_policy(template["spec"]["containers"][0]["name"], recreate=False),
        "template": template,
    }
    meta = _meta(name, namespace, labels, rules)
    return ({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec},), create_only


def _indexed(
    name: str, namespace: str, labels: dict[str, str], template: Manifest, rows: Slice, rules: Rules
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:
    """One pod a machine, found by each other through a headless Service.

    When one host is lost the others fail too (their collectives break), so each counts.
    """
    made, create_only = _single(name, namespace, labels, template, rules)
    job = made[0]
    spec = {
        **job["spec"],
        "completionMode": "Indexed",
        "completions": rows.hosts,
        "parallelism": rows.hosts,
        "backoffLimit": _attempts(rules) * rows.hosts,
        "template": {**template, "spec": {**template["spec"], "subdomain": name}},
    }
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }
    return (service, {**job, "spec": spec}), create_only


def _jobset(
    name: str, stage: str, namespace: str, labels: dict[str, str], template: Manifest, rows: Slice,
    rules: Rules,
) -> tuple[tuple[Manifest, ...], tuple[str, ...]]:  # fmt: skip
    """One slice. JobSet makes the headless Service and restarts all pods together.

    The Job's failure message tells bad input from preemption: both reach the JobSet with the one
    reason PodFailurePolicy.
    """
    suspend, create_only = _suspend(rules)
    job: Manifest = {
        "completionMode": "Indexed",
        "completions": rows.hosts,
        "parallelism": rows.hosts,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": pod_failure_policy(template["spec"]["containers"][0]["name"], recreate=True),
        "template": template,
    }
    fatal = "|".join(str(code) for code in sorted(exits.FATAL))
    policy: Manifest = {
        "maxRestarts": _attempts(rules),
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "badInput",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f"failed with exit code ({fatal}) matching"],
            },
            {
                "name": "preempted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [
                    f"failed with exit code {exits.PREEMPTED} matching",
                    "has condition DisruptionTarget matching",
                ],
            },
        ],
    }
    meta = _meta(name, namespace, labels, rules)
    meta["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    spec: Manifest = {
        **suspend,
        "failurePolicy": policy,
        "replicatedJobs": [
            {"name": stage, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": job}}
        ],
    }
    return (
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec},
    ), create_only
