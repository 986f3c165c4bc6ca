"""Pods of the base image, as Pod Security's `restricted` admits them."""

from __future__ import annotations

from tests.cluster.api import Object

from .box import host, images


def pod(name: str, *command: str, labels: dict[str, str] | None = None, **container: object) -> Object:
    """A pod of the base image that Pod Security's `restricted` admits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": images.NONROOT,
                "runAsGroup": images.NONROOT,
                "fsGroup": images.NONROOT,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "c",
                    "image": images.BASE,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


class Pods:
    """The pods of one namespace of the box."""

    def __init__(self, box: host.Box, namespace: str) -> None:
        self.box = box
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.namespace = namespace

    def create(self, wanted: Object) -> str:
        """Creates a pod and returns its name."""
        self.box.request("POST", self.path, wanted)
        return wanted["metadata"]["name"]

    def await_phase(self, name: str, *phases: str, timeout: float = 120.0) -> Object:
        """Waits until a pod is in one of these phases and returns it."""

        def there() -> bool:
            return self.box.request("GET", f"{self.path}/{name}")["status"]["phase"] in phases

        self.box.wait_for(there, f"the phase {' or '.join(phases)} of pod {name}", timeout)
        return self.box.request("GET", f"{self.path}/{name}")

    def run(self, wanted: Object, timeout: float = 120.0) -> tuple[int, str]:
        """Runs a pod to its end: its exit code and what it printed."""
        name = self.create(wanted)
        ended = self.await_phase(name, "Succeeded", "Failed", timeout=timeout)
        code = ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        return code, self.box.kubectl("logs", "-n", self.namespace, name)
