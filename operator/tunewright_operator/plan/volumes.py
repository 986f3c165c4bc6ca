"""Volumes of planned pods: configuration, scratch, claims, shared memory; and `pvc://` as a path."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from tunewright_operator.plan.settings import Settings
from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, show

CONFIG = "/etc/tunewright"
WORK = "/var/tunewright"
CLAIMS = "/mnt/claims"
PROGRESS = f"{WORK}/progress.json"

RESERVED = (CONFIG, WORK, CLAIMS)
"""Folders of the planned pods; a user's file:// must not point below them."""


@dataclass
class Volumes:
    """Collects what one pod mounts, while the URIs of its configuration are resolved."""

    settings: Settings
    claims: dict[str, bool] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def resolve(self, uri: str, place: str, *, write: bool = False) -> str:
        """The URI as the workload sees it: `pvc://claim/x` -> `file:///mnt/claims/claim/x`.

        Faults are collected, so that a plan names all of them at once.
        """
        parsed = uris.parse(uri, place, writable=write)
        if parsed.scheme == "pvc":
            self.claims[parsed.root] = self.claims.get(parsed.root, False) or write
            return f"file://{CLAIMS}/{parsed.root}/{parsed.path}"
        if parsed.scheme == "file":
            if any(parsed.path == r or parsed.path.startswith(f"{r}/") for r in RESERVED):
                self.faults.append(
                    Fault(place, f"must not be below {', '.join(RESERVED)}", show(uri), "Use another folder.")
                )
            elif write and not self.settings.local:
                self.faults.append(
                    Fault(
                        place,
                        "file:// is lost with the pod that wrote it",
                        show(uri),
                        "Use gs://bucket/path or pvc://claim/path in a cluster; "
                        "file:// works with `tunewright run`.",
                    )
                )
        return str(parsed)

    def check(self) -> None:
        """Raises UserError with every fault that `resolve` met."""
        if self.faults:
            raise UserError(self.faults)

    def mount_claim(self, claim: str, *, write: bool = True) -> str:
        """Mounts a whole claim. Returns where."""
        self.claims[claim] = self.claims.get(claim, False) or write
        return f"{CLAIMS}/{claim}"

    def render(
        self, config_map: str | None, *, scratch_gib: float, shared_memory: str | None = None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The pod's `volumes` and the container's `volumeMounts`."""
        volumes: list[dict[str, Any]] = []
        mounts: list[dict[str, Any]] = []

        def add(name: str, path: str, source: dict[str, Any], **more: Any) -> None:
            volumes.append({"name": name, **source})
            mounts.append({"name": name, "mountPath": path, **more})

        if config_map:
            add("config", CONFIG, {"configMap": {"name": config_map}}, readOnly=True)
        add("work", WORK, scratch(self.settings, scratch_gib))
        add("tmp", "/tmp", {"emptyDir": {}})
        if shared_memory:
            add("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}})
        for claim, write in self.claims.items():
            source = {"persistentVolumeClaim": {"claimName": claim}}
            more = {} if write else {"readOnly": True}
            add(claim_volume(claim), f"{CLAIMS}/{claim}", source, **more)
        return volumes, mounts


def written(uri: str) -> str:
    """A resolved URI as the spec wrote it: `file:///mnt/claims/claim/x` -> `pvc://claim/x`."""
    mounted = f"file://{CLAIMS}/"
    return f"pvc://{uri.removeprefix(mounted)}" if uri.startswith(mounted) else uri


def claim_volume(claim: str) -> str:
    """Name of the volume of a claim: a DNS label, whatever the claim's name is."""
    plain = re.sub(r"[^-a-z0-9]", "-", claim)
    if plain == claim and len(claim) <= 50:
        return f"claim-{claim}"
    return f"claim-{plain[:40].rstrip('-')}-{hashlib.sha256(claim.encode()).hexdigest()[:8]}"


def scratch(settings: Settings, gib: float) -> dict[str, Any]:
    """The scratch volume: the node's disk, or a volume of its own that goes with the pod."""
    if settings.scratch_class is None:
        return {"emptyDir": {}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": settings.scratch_class,
        "resources": {"requests": {"storage": f"{max(1, round(gib))}Gi"}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
