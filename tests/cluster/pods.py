"""Sets the status of pods that no kubelet runs, in the shapes that real kubelets leave behind."""

from __future__ import annotations

from .api import ApiError, Cluster, Object

_EPOCH = "2026-01-01T00:00:00Z"


def run(cluster: Cluster, namespace: str, pod: str) -> None:
    """The pod's containers run and are ready."""
    _report(cluster, namespace, pod, "Running", {"running": {"startedAt": _EPOCH}}, ready=True)


def finish(cluster: Cluster, namespace: str, pod: str, exit_code: int = 0, reason: str | None = None) -> None:
    """Every container ended with `exit_code`; `reason` is for example OOMKilled, which goes with 137."""
    ended = {
        "exitCode": exit_code,
        "reason": reason or ("Error" if exit_code else "Completed"),
        "startedAt": _EPOCH,
        "finishedAt": _EPOCH,
    }
    _report(
        cluster, namespace, pod, "Failed" if exit_code else "Succeeded", {"terminated": ended}, ready=False
    )


def wait(cluster: Cluster, namespace: str, pod: str, reason: str, message: str = "") -> None:
    """The pod's containers do not start: `reason` is for example ImagePullBackOff or ErrImageNeverPull."""
    waiting = {"reason": reason, "message": message}
    _report(cluster, namespace, pod, "Pending", {"waiting": waiting}, ready=False)


def evict(cluster: Cluster, namespace: str, pod: str, reason: str, message: str = "") -> None:
    """The pod failed by a disruption: `reason` is for example PreemptionByScheduler or TerminationByKubelet."""
    found = cluster.request("GET", _path(namespace, pod))
    others = [one for one in found["status"].get("conditions", []) if one["type"] != "DisruptionTarget"]
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    status = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [*others, disruption]}
    cluster.patch(f"{_path(namespace, pod)}/status", {"status": status})


def reject(cluster: Cluster, namespace: str, pod: str, reason: str = "UnexpectedAdmissionError") -> None:
    """The kubelet refused the pod: no condition, no container status, so no exit code to go by."""
    message = (
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate google.com/tpu"
    )
    status = {"phase": "Failed", "reason": reason, "message": message, "startTime": _EPOCH}
    cluster.patch(f"{_path(namespace, pod)}/status", {"status": status})


def end_deleted(cluster: Cluster, namespace: str) -> list[str]:
    """Finishes the deletion of pods that wait for a kubelet to end them; returns their names."""
    leaving = [
        pod["metadata"]["name"]
        for pod in cluster.items(f"/api/v1/namespaces/{namespace}/pods")
        if "deletionTimestamp" in pod["metadata"]
    ]
    for name in leaving:
        try:
            cluster.request("DELETE", f"{_path(namespace, name)}?gracePeriodSeconds=0")
        except ApiError as refusal:
            if refusal.status != 404:
                raise
    return leaving


def _report(cluster: Cluster, namespace: str, pod: str, phase: str, state: Object, *, ready: bool) -> None:
    found = cluster.request("GET", _path(namespace, pod))
    verdict = "True" if ready else "False"
    others = [
        one
        for one in found["status"].get("conditions", [])
        if one["type"] not in ("Ready", "ContainersReady")
    ]
    status = {
        "phase": phase,
        "startTime": found["status"].get("startTime", _EPOCH),
        "conditions": [
            *others,
            *({"type": kind, "status": verdict} for kind in ("Ready", "ContainersReady")),
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
            for container in found["spec"]["containers"]
        ],
    }
    cluster.patch(f"{_path(namespace, pod)}/status", {"status": status})


def _path(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}"
