"""The kinds that the operator reads and writes, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OWN_GROUP = "tunewright.dev"
UID_LABEL = "tunewright.dev/uid"
"""The owner's uid on every child and on every pod below it: what the watches select by, and how an
event finds its resource in one step, however many ReplicaSets or JobSets stand between."""


@dataclass(frozen=True)
class Resource:
    """One namespaced kind of the API.

    watched:   an event of it wakes its owner.
    optional:  it may be missing from a cluster (its CRD is not installed).
    """

    group: str
    version: str
    kind: str
    plural: str
    watched: bool = False
    optional: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def selector(self) -> str | None:
        """The label selector that the API server filters by; None: everything of this kind."""
        return None if self.group == OWN_GROUP else UID_LABEL

    def url(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """The path below the server's address."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name:
            parts.append(name)
        if sub:
            parts.append(sub)
        return "/".join(parts)


FINETUNEJOB = Resource(OWN_GROUP, "v1alpha1", "FineTuneJob", "finetunejobs", watched=True)
ENDPOINT = Resource(OWN_GROUP, "v1alpha1", "ServeEndpoint", "serveendpoints", watched=True)
JOB = Resource("batch", "v1", "Job", "jobs", watched=True)
JOBSET = Resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", watched=True, optional=True)
POD = Resource("", "v1", "Pod", "pods", watched=True)
CONFIGMAP = Resource("", "v1", "ConfigMap", "configmaps", watched=True)
SERVICE = Resource("", "v1", "Service", "services", watched=True)
DEPLOYMENT = Resource("apps", "v1", "Deployment", "deployments", watched=True)
CLAIM = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
ACCOUNT = Resource("", "v1", "ServiceAccount", "serviceaccounts")
ROLE = Resource("rbac.authorization.k8s.io", "v1", "Role", "roles")
BINDING = Resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
AUTOSCALER = Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
BUDGET = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
POLICY = Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
MONITORING = Resource("monitoring.googleapis.com", "v1", "PodMonitoring", "podmonitorings", optional=True)
PODMONITOR = Resource("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", optional=True)
POOL = Resource("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools", optional=True)
EVENT = Resource("", "v1", "Event", "events")

RESOURCES: tuple[Resource, ...] = (
    FINETUNEJOB, ENDPOINT, JOB, JOBSET, POD, CONFIGMAP, SERVICE, DEPLOYMENT, CLAIM, ACCOUNT, ROLE, BINDING,
    AUTOSCALER, BUDGET, POLICY, MONITORING, PODMONITOR, POOL, EVENT,
)  # fmt: skip
WATCHED = tuple(r for r in RESOURCES if r.watched)
_BY_KIND = {(r.group, r.kind): r for r in RESOURCES}


def of(manifest: dict[str, Any]) -> Resource:
    """The resource of a manifest. Raises KeyError for a kind that the operator does not handle."""
    group = manifest["apiVersion"].rpartition("/")[0]
    return _BY_KIND[group, manifest["kind"]]


def written(resource: Resource, known: dict[str, Any]) -> dict[str, Any]:
    """One of our resources as somebody wrote it, of what the cache keeps: without status and bookkeeping."""
    meta = known["metadata"]
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": resource.kind,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": known["spec"],
    }
