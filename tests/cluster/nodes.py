"""TPU hosts that are only Node objects: what a scheduler sees of them, with no machine behind.

Labels, capacity and taint are those of GKE's TPU node pools. Pods are bound to such nodes and stay
Pending, since no kubelet answers: `pods` sets their status by hand.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from .api import Cluster, Object

TPU = "google.com/tpu"


@dataclass(frozen=True)
class Pool:
    """A node pool: the hosts of one slice, or of several single-host slices."""

    name: str
    nodes: tuple[str, ...]

    def delete(self, cluster: Cluster) -> None:
        """Removes the nodes, as when a pool is scaled away; the pod garbage collector ends their pods."""
        for node in self.nodes:
            cluster.request("DELETE", f"/api/v1/nodes/{node}")


def fake_tpu_nodes(
    cluster: Cluster,
    count: int,
    accelerator: str = "tpu-v5p-slice",
    topology: str = "2x2x1",
    chips: int = 4,
    labels: Mapping[str, str] | None = None,
) -> Pool:
    """Adds Ready nodes of one pool with `chips` TPU chips each; `labels` adds to (or overrides) theirs."""
    pool = f"tpu-{uuid.uuid4().hex[:6]}"
    names = tuple(f"{pool}-{index}" for index in range(count))
    for name in names:
        node = _node(name, pool, accelerator, topology, chips, labels or {})
        cluster.request("POST", "/api/v1/nodes", node)
        cluster.patch(f"/api/v1/nodes/{name}/status", {"status": node["status"]})
        # Admission taints each new node as not ready, for the controller to take away; here nobody need wait.
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": node["spec"]["taints"]}})
    return Pool(pool, names)


def taint(cluster: Cluster, node: str, key: str, effect: str = "NoExecute") -> None:
    """Adds a taint: NoExecute evicts the node's pods, as a preemption or a repair does."""
    path = f"/api/v1/nodes/{node}"
    taints = cluster.request("GET", path)["spec"].get("taints", [])
    cluster.patch(path, {"spec": {"taints": [*taints, {"key": key, "effect": effect}]}})


def _node(
    name: str, pool: str, accelerator: str, topology: str, chips: int, labels: Mapping[str, str]
) -> Object:
    resources = {
        "cpu": "208",
        "memory": "400Gi",
        "pods": "110",
        "ephemeral-storage": "100Gi",
        TPU: str(chips),
    }
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "cloud.google.com/gke-nodepool": pool,
                "cloud.google.com/gke-tpu-accelerator": accelerator,
                "cloud.google.com/gke-tpu-topology": topology,
                **labels,
            },
        },
        "spec": {"taints": [{"key": TPU, "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "NoKubelet", "message": "a node of the tests"}
            ],
        },
    }
