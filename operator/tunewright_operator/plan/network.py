"""Who may speak to the pods of a job: the pods of the same job, and nobody else."""

from __future__ import annotations

from tunewright_operator.plan import names
from tunewright_operator.plan.stage import Manifest


def policy(name: str, namespace: str, labels: dict[str, str], metrics: int | None = None) -> Manifest:
    """Ingress from the job's own pods only: the hosts of a slice find each other (libtpu 8471,
    coordinator 8482 or 8476), and nothing else has business there, besides whoever scrapes the port
    `metrics`. Egress is the namespace's affair: buckets, the hub and the metadata server have no fixed
    addresses.
    """
    pods = {"matchLabels": {names.JOB: names.label(name)}}
    scraped = [] if metrics is None else [{"ports": [{"protocol": "TCP", "port": metrics}]}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.child(name, "job"), "namespace": namespace, "labels": labels},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}, *scraped],
        },
    }
