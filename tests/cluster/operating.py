"""The operator as a process of its own, with the rights that we ship and nothing more.

Imported by the tests that need it: `from .operating import operator` brings the session's operator.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from . import kubeconfig
from .api import Cluster, Object
from .process import Process, free_ports, plain_environment, wait_for

ROOT = Path(__file__).parents[2]
SYSTEM = "tunewright-system"
GROUP = "/apis/tunewright.dev/v1alpha1"


def install(cluster: Cluster, overlay: str = "cluster-wide", namespace: str | None = None) -> None:
    """Applies an overlay without its Deployment: CRDs, account, rights."""
    text = cluster.kubectl("kustomize", ROOT / "manifests/overlays" / overlay)
    found = [one for one in yaml.safe_load_all(text) if one and one["kind"] not in ("Deployment", "Service")]
    if namespace is not None:
        for one in found:
            one["metadata"]["namespace"] = namespace
            for subject in one.get("subjects", []):
                subject["namespace"] = namespace
    crds = [one for one in found if one["kind"] == "CustomResourceDefinition"]
    cluster.apply(*crds, *(one for one in found if one not in crds))
    cluster.established(one["metadata"]["name"] for one in crds)


class Operator:
    """One operator process. `start`, `kill` and `start` again: its memory is the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *arguments: str,
        name: str = "operator",
        account: str | None = None,
        url: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.folder = Path(tempfile.mkdtemp(prefix="tunewright-operator-"))
        self.metrics_port, self.health_port = free_ports(2)
        space, who = (account or f"{SYSTEM}/tunewright-operator").split("/")
        token = cluster.service_account_token(space, who)
        config = kubeconfig.write(self.folder / "operator.kubeconfig", url or cluster.url, cluster.ca, token)
        command = [
            sys.executable,
            "-m",
            "tunewright_operator.reconcile",
            "--kubeconfig",
            str(config),
            "--metrics",
            f"127.0.0.1:{self.metrics_port}",
            "--liveness",
            f"http://127.0.0.1:{self.health_port}/healthz",
            *arguments,
        ]
        paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "workloads"))
        self.process = Process(
            name, command, self.folder / "log", environment=plain_environment(PYTHONPATH=paths)
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *, wait: bool = True) -> None:
        """Starts it and, unless told otherwise, waits until it is ready."""
        self.process.start()
        if wait:
            wait_for(lambda: self.get("/readyz") == "ready", "the operator", [self.process])

    def kill(self) -> None:
        """kill -9: nothing is written down, nothing is said."""
        self.process.stop(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.stop(signal.SIGTERM, grace=30)
        child = self.process._child
        assert child is not None
        return int(child.returncode)

    def get(self, path: str, port: int | None = None) -> str | None:
        """What it answers over HTTP, None while it does not."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port or self.metrics_port}{path}", timeout=10
            ) as found:
                return str(found.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def alive(self) -> bool:
        """The liveness probe."""
        return self.get("/healthz", self.health_port) is not None

    def writes(self) -> dict[str, int]:
        """Writes that it sent to the API server since it started, by verb, kind and answer."""
        verbs = ("POST", "PATCH", "APPLY", "DELETE", "PUT")
        found = {}
        for line in (self.get("/metrics") or "").splitlines():
            if line.startswith("tunewright_api_requests_total{") and any(
                f'verb="{v}"' in line for v in verbs
            ):
                what, _, number = line.rpartition(" ")
                found[what.partition("{")[2].rstrip("}")] = int(float(number))
        return found

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        return [
            json.loads(line) for line in self.process.log.read_text().splitlines() if line.startswith("{")
        ]

    @property
    def rss(self) -> int:
        """Resident memory, bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) * 1024


@pytest.fixture(scope="session")
def operator(session_operator: Operator) -> Operator:
    """The session's operator. A fixture that modules import is another one in each of them, whatever
    its scope: the one that starts it stands in conftest.py, or every module would add an operator."""
    return session_operator


class Space:
    """One namespace, and what tests do in it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def path(self, plural: str, name: str = "", group: str = GROUP) -> str:
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def job(self, name: str = "bot", **spec: Any) -> Object:
        """Creates a small FineTuneJob; `spec` replaces whole parts of it."""
        return self.create("FineTuneJob", name, tiny(**spec))

    def endpoint(self, name: str = "bot", **spec: Any) -> Object:
        body = {"model": {"fineTuneJobRef": {"name": "bot"}}, "accelerator": {"type": "cpu"}, **spec}
        return self.create("ServeEndpoint", name, body)

    def create(self, kind: str, name: str, spec: Object) -> Object:
        body = {
            "apiVersion": "tunewright.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        return self.cluster.request("POST", self.path(plural(kind)), body)

    def get(self, kind: str = "FineTuneJob", name: str = "bot") -> Object:
        return self.cluster.request("GET", self.path(plural(kind), name))

    def change(self, spec: Object, kind: str = "FineTuneJob", name: str = "bot") -> Object:
        return self.cluster.patch(self.path(plural(kind), name), {"spec": spec})

    def status(self, kind: str = "FineTuneJob", name: str = "bot") -> Object:
        return dict(self.get(kind, name).get("status", {}))

    def phase(
        self,
        wanted: str,
        kind: str = "FineTuneJob",
        name: str = "bot",
        reason: str | None = None,
        timeout: float = 90,
    ) -> Object:
        """Waits for a phase (and the reason of Ready) and returns the status."""
        seen: list[Object] = [{}]

        def there() -> bool:
            seen[0] = self.status(kind, name)
            return seen[0].get("phase") == wanted and (reason is None or ready(seen[0])["reason"] == reason)

        try:
            self.cluster.wait_for(there, f"phase {wanted} of {kind} {name}", timeout=timeout)
        except TimeoutError as error:
            raise AssertionError(f"{error}; the status is {json.dumps(seen[0])}") from None
        return seen[0]

    def pods(self, stage: str) -> list[Object]:
        """The living pods of a stage, oldest first."""
        found = self.cluster.items(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=f"tunewright.dev/stage={stage}"
        )
        living = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return sorted(living, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))

    def pod(self, stage: str = "train", but: set[str] | None = None) -> str:
        """Waits for a pod of a stage that has not ended, and is none of `but`; returns its name."""
        seen: list[str] = []

        def there() -> bool:
            seen[:] = [
                p["metadata"]["name"]
                for p in self.pods(stage)
                if p["status"].get("phase") not in ("Succeeded", "Failed")
                and p["metadata"]["name"] not in (but or set())
            ]
            return bool(seen)

        try:
            self.cluster.wait_for(there, f"a pod of stage {stage}", timeout=60)
        except TimeoutError as error:
            jobs = self.cluster.items(f"/apis/batch/v1/namespaces/{self.namespace}/jobs")
            states = [(j["metadata"]["name"], j["spec"].get("suspend"), j.get("status")) for j in jobs]
            pods = [(p["metadata"]["name"], p["status"].get("phase")) for p in self.pods(stage)]
            found = self.cluster.items(f"{GROUP}/namespaces/{self.namespace}/finetunejobs")
            theirs = [(j["metadata"]["name"], j["spec"], j.get("status")) for j in found]
            raise TimeoutError(
                f"{error}\n--- FineTuneJobs {theirs}\n--- jobs {states}\n--- pods {pods}"
            ) from None
        return seen[0]

    def progress(self, name: str = "bot", **record: Any) -> None:
        """What the relay beside the workload would write."""
        body = {"stage": "train", "time": "2026-12-01T08:00:00Z", **record}
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}-progress"
        self.cluster.patch(path, {"data": {"progress.json": json.dumps(body)}})

    def names(self, path: str) -> list[str]:
        """Names of our children of a kind."""
        found = self.cluster.items(self.path(path, group=_GROUPS[path]), labelSelector="tunewright.dev/uid")
        return sorted(one["metadata"]["name"] for one in found)


_GROUPS = {
    "jobs": "/apis/batch/v1",
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "deployments": "/apis/apps/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
}
CHILDREN = tuple(_GROUPS)


def plural(kind: str) -> str:
    return kind.lower() + "s"


def ready(status: Object) -> Object:
    """The Ready condition."""
    return next((dict(c) for c in status.get("conditions", []) if c["type"] == "Ready"), {"reason": None})


def tiny(**spec: Any) -> Object:
    """A job that any cluster could run."""
    return {
        "model": {"name": "gemma-4-tiny"},
        "dataset": {"train": ["sample://faq"], "maxLength": 128},
        "training": {"steps": 100, "globalBatchSize": 8},
        "accelerator": {"type": "cpu"},
        "output": {"uri": "gs://acme/models/bot"},
        **spec,
    }


@pytest.fixture
def space(operator: Operator, cluster: Cluster, namespace: str) -> Space:
    """A namespace that the operator serves."""
    return Space(cluster, namespace)
