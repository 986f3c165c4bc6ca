"""What every planned pod has in common: no privileges, small requests, the user's additions.

Every pod passes the Pod Security standard `restricted`. None uses the host's network: that would
go around Workload Identity.
"""

from __future__ import annotations

from typing import Any

from tunewright_operator.api.pods import PodTemplate
from tunewright_operator.plan.stage import Manifest
from tunewright_operator.plan.volumes import WORK
from tunewright_workloads.contract.accelerators import (
    GPU_LABEL,
    GPU_RESOURCE,
    TPU_LABEL,
    TPU_RESOURCE,
    TPU_TOPOLOGY_LABEL,
    Accelerator,
    Slice,
)
from tunewright_workloads.contract.faults import Fault, UserError, show

USER = 65532
"""uid and gid of our images ("nonroot" of distroless)."""

WRITABLE = {"HOME": WORK, "HF_HOME": f"{WORK}/huggingface", "XDG_CACHE_HOME": f"{WORK}/cache"}
"""Where libraries keep what they keep: our uid has no home, and the image is read-only."""

CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}

POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def placement(
    chip: Accelerator, rows: Slice, mode: str, name: str | None
) -> tuple[dict[str, str], list[Manifest]]:
    """Node selector and tolerations of a slice (GKE's labels)."""
    if chip.kind == "cpu":
        selector: dict[str, str] = {}
        tolerations: list[Manifest] = []
    elif chip.kind == "tpu":
        selector = {TPU_LABEL: str(chip.label), TPU_TOPOLOGY_LABEL: rows.topology}
        tolerations = [{"key": TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    else:
        selector = {GPU_LABEL: str(chip.label)}
        tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    if mode == "spot":
        selector["cloud.google.com/gke-spot"] = "true"
        tolerations.append(
            {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        )
    elif mode == "flexStart":
        selector["cloud.google.com/gke-flex-start"] = "true"
    elif mode == "reservation":
        selector["cloud.google.com/reservation-name"] = str(name)
    elif mode == "computeClass":
        selector["cloud.google.com/compute-class"] = str(name)
    return selector, tolerations


def resources(
    chip: Accelerator, rows: Slice, *, cpu: str, memory: str, scratch: str | None, user: PodTemplate
) -> Manifest:
    """Requests and limits. Chips: requests = limits, all of the machine's.

    Only chips are limited by default; memory and CPU are asked for in small amounts, because a
    large request keeps a TPU machine empty.
    """
    requests: dict[str, Any] = {"cpu": cpu, "memory": memory}
    if scratch:
        requests["ephemeral-storage"] = scratch
    requests |= user.resources.requests
    limits: dict[str, Any] = dict(user.resources.limits)
    if chip.resource:
        requests[chip.resource] = limits[chip.resource] = rows.chips_per_host
    return {"requests": requests, **({"limits": limits} if limits else {})}


def environment(
    planned: dict[str, Any], user: PodTemplate, place: str = "spec.podTemplate.env"
) -> list[Manifest]:
    """Our variables, then the user's. Raises UserError where both name the same."""
    base = {**WRITABLE, **planned}
    ours = [{"name": k, **(v if isinstance(v, dict) else {"value": v})} for k, v in base.items()]
    faults = [
        Fault(f"{place}[{i}].name", "is set by the plan", show(e.name), "Remove it.")
        for i, e in enumerate(user.env)
        if e.name in base
    ]
    if faults:
        raise UserError(faults)
    theirs = [_plain(e) for e in user.env]
    return ours + [{"value": "", **e} if "valueFrom" not in e else e for e in theirs]


def secret(name: str, key: str) -> Manifest:
    """A variable's value out of a Secret, which only the kubelet reads."""
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def pod(
    *,
    labels: dict[str, str],
    annotations: dict[str, str],
    container: Manifest,
    volumes: list[Manifest],
    selector: dict[str, str],
    tolerations: list[Manifest],
    user: PodTemplate,
    account: str | None,
    grace: int,
    restart: str,
    sidecars: list[Manifest] | None = None,
    **more: Any,
) -> Manifest:
    """A pod template. Our labels win over the user's, which cannot be below tunewright.dev/."""
    spec: Manifest = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        **({"serviceAccountName": account} if account else {}),
        **more,
    }
    if selector or user.node_selector:
        spec["nodeSelector"] = {**user.node_selector, **selector}
    both = [*tolerations, *(_plain(t) for t in user.tolerations)]
    if both:
        spec["tolerations"] = both
    if sidecars:
        spec["initContainers"] = sidecars
    spec["containers"] = [{**container, "securityContext": CONTAINER_SECURITY}]
    spec["volumes"] = volumes
    meta: Manifest = {"labels": {**user.labels, **labels}}
    if annotations or user.annotations:
        meta["annotations"] = {**user.annotations, **annotations}
    return {"metadata": meta, "spec": spec}


def _plain(part: Any) -> Manifest:
    data: Manifest = part.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data
