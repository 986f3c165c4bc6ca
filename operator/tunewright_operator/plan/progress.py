"""How progress reaches status: a ConfigMap that one sidecar may patch, and nothing else.

The trainer replaces a file. A sidecar (`tunewright_workloads.relay`) copies it into the ConfigMap
`<job>-progress`, key `progress.json`, at most once in ten seconds; the operator's watch sees it.
No port is opened, nobody polls, and the rights are the least there are: only the sidecar holds a
token, which expires, and the Role allows `patch` on this one ConfigMap by name.
"""

from __future__ import annotations

from tunewright_operator.plan.names import child
from tunewright_operator.plan.pods import CONTAINER_SECURITY
from tunewright_operator.plan.stage import Manifest
from tunewright_operator.plan.volumes import PROGRESS, WORK

KEY = "progress.json"
"""Key of the record in the ConfigMap: the name of the file that is copied."""

EVERY = 10
"""Seconds between two writes, at least."""

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def config_map(name: str) -> str:
    """Name of the progress ConfigMap of a job."""
    return child(name, "progress")


def account(name: str, namespace: str, labels: dict[str, str]) -> Manifest:
    """A ServiceAccount without rights of its own; its token is mounted by the sidecar alone."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "automountServiceAccountToken": False,
    }


def objects(target: str, namespace: str, labels: dict[str, str], account: str) -> tuple[Manifest, ...]:
    """The ConfigMap `target` (its data is the sidecar's alone), the Role to patch it and its binding."""
    meta = {"name": target, "namespace": namespace, "labels": labels}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [target],
                    "verbs": ["patch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": target},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    )


def sidecar(target: str, image: str, pull_policy: str, *, file: str = PROGRESS) -> tuple[Manifest, Manifest]:
    """The container that copies `file` into the ConfigMap `target`, and the volume with its token.

    It is an init container that is always restarted, so it ends by itself after the workload, and
    the Job does not wait for it.
    """
    container: Manifest = {
        "name": "relay",
        "image": image,
        "imagePullPolicy": pull_policy,
        "restartPolicy": "Always",
        "command": [
            "python3", "-m", "tunewright_workloads.relay",
            "--file", file, "--config-map", target, "--every", str(EVERY),
        ],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "work", "mountPath": WORK, "readOnly": True},
            {"name": "token", "mountPath": TOKEN, "readOnly": True},
        ],
    }  # fmt: skip
    volume: Manifest = {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            ]
        },
    }
    return container, volume
