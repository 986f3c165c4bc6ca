"""What a pod's state means, and whose turn it is.

The shapes of failure look alike and ask for different things: a preemption is nobody's fault, an
ephemeral-storage eviction carries the same condition and would repeat for ever, a pod rejected by
a node under repair has neither condition nor exit code. Sources: the Kubernetes API (pod
conditions, pod failure policy) and GKE's documentation of TPU node repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tunewright_workloads.contract import engine, exits

Object = dict[str, Any]


class Shape(StrEnum):
    """What one pod shows."""

    UNSCHEDULABLE = "Unschedulable"
    STARTING = "Starting"
    IMAGE = "ImagePullFailed"
    CONFIG = "ContainerConfigFailed"
    CRASHING = "Restarting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    PREEMPTED = "Preempted"
    REPAIR = "NodeRepair"
    STORAGE = "StorageExhausted"
    MEMORY = "OutOfMemory"
    INPUT = "BadInput"
    FAILED = "Failed"


ENDED = frozenset(
    {Shape.SUCCEEDED, Shape.PREEMPTED, Shape.REPAIR, Shape.STORAGE, Shape.MEMORY, Shape.INPUT, Shape.FAILED}
)
INTERRUPTED = frozenset({Shape.PREEMPTED, Shape.REPAIR})
"""Ended from outside: started again without counting as a failure."""

FATAL = frozenset({Shape.INPUT, Shape.STORAGE})
"""A restart would end the same way."""

NEEDS_SOMEBODY = frozenset({Shape.IMAGE, Shape.CONFIG})
"""Kubernetes keeps trying, and somebody has to change something before it can work."""

_PULL = frozenset({"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"})
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_ADMISSION = frozenset(
    {
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
    }
)
_STORAGE = ("ephemeral", "emptydir")
WORDS = 600
"""Characters of a container's last words that a status shows."""


@dataclass(frozen=True)
class Finding:
    """One pod's meaning.

    message: what happened and, where somebody can do something, what.
    code:    the exit code of the container that decided, None where none did.
    """

    shape: Shape
    message: str = ""
    code: int | None = None

    @property
    def ended(self) -> bool:
        return self.shape in ENDED


def find(pod: Object) -> Finding:
    """Reads one slim pod."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    if phase == "Succeeded":
        return Finding(Shape.SUCCEEDED, code=0)
    if phase == "Failed":
        return _failed(pod, status, statuses)
    if pod["metadata"].get("deletionTimestamp") and _condition(status, "DisruptionTarget"):
        return _disrupted(pod, status)
    for one in statuses:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason, words = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _PULL:
            return Finding(
                Shape.IMAGE,
                f"container {one.get('name')}: {reason}: {words or 'the image cannot be pulled'}. "
                "Check the image's name, and that the node may pull it.",
            )
        if reason in _CONFIG:
            return Finding(
                Shape.CONFIG,
                f"container {one.get('name')}: {reason}: {words or 'it cannot be created'}. "
                "It starts by itself once what is named here exists.",
            )
        if reason == "CrashLoopBackOff":
            ended = (one.get("lastState") or {}).get("terminated") or {}
            return Finding(
                Shape.CRASHING,
                f"container {one.get('name')} keeps ending, last with exit code {ended.get('exitCode')}"
                f"{_said(ended)}. See `kubectl logs {_where(pod)} --previous`.",
                ended.get("exitCode"),
            )
    if phase == "Running":
        return Finding(Shape.RUNNING)
    scheduled = _condition(status, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return Finding(Shape.UNSCHEDULABLE, scheduled.get("message") or "no node fits yet")
    for one in statuses:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "ErrImagePull":  # the first tries often only meet a slow registry
            return Finding(Shape.STARTING, f"pulling the image: {waiting.get('message', '')}".rstrip(": "))
    return Finding(Shape.STARTING, "the pod is starting")


def _failed(pod: Object, status: Object, statuses: list[Object]) -> Finding:
    reason, words = status.get("reason") or "", status.get("message") or ""
    disrupted = _condition(status, "DisruptionTarget")
    if reason == "Evicted" and any(mark in words.lower() for mark in _STORAGE):
        return Finding(
            Shape.STORAGE,
            f"the pod was evicted because its scratch space ran out: {words.strip()} "
            "A restart would end the same way: use a node with a larger disk, or a smaller dataset or model.",
        )
    if disrupted:
        return _disrupted(pod, status)
    ended = [s for s in statuses if ((s.get("state") or {}).get("terminated") or {}).get("exitCode", 0) != 0]
    # The first container does the work; a helper that is ended after it is not what went wrong.
    names = [s.get("name") for s in status.get("containerStatuses") or []]
    ended.sort(key=lambda s: names.index(s.get("name")) if s.get("name") in names else len(names))
    if not ended:
        if reason in _ADMISSION or reason == "NodeShutdown" or reason == "Terminated":
            return Finding(
                Shape.REPAIR,
                f"the node rejected the pod ({reason}: {words.strip() or 'no reason given'}): it is being repaired "
                "or was taken by others in between. A node repair takes minutes; the pod is started again.",
            )
        return Finding(Shape.FAILED, f"the pod failed ({reason or 'no reason given'}): {words.strip()}")
    one = ended[0]
    state = one["state"]["terminated"]
    code = int(state.get("exitCode", 1))
    if state.get("reason") == "OOMKilled":
        return Finding(
            Shape.MEMORY,
            f"container {one.get('name')} ran out of memory (OOMKilled). "
            "Use a machine with more memory, or a smaller batch or maxLength.",
            code,
        )
    if code in exits.FATAL:
        said = _said(state)
        hint = "" if said else f" See `kubectl logs {_where(pod)}`."
        return Finding(Shape.INPUT, f"the input cannot work (exit code {code}){said}.{hint}", code)
    if code in exits.INTERRUPTED:
        kept = "its checkpoint is saved" if code == exits.PREEMPTED else "it goes on from its last checkpoint"
        return Finding(Shape.PREEMPTED, f"the pod was ended from outside (exit code {code}); {kept}", code)
    return Finding(
        Shape.FAILED,
        f"container {one.get('name')} ended with exit code {code}{_said(state)}. See `kubectl logs {_where(pod)}`.",
        code,
    )


def _disrupted(pod: Object, status: Object) -> Finding:
    condition = _condition(status, "DisruptionTarget") or {}
    code = None
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated")
        if ended and code is None:
            code = ended.get("exitCode")
    why = condition.get("reason") or "DisruptionTarget"
    return Finding(
        Shape.PREEMPTED, f"the pod was taken away ({why}: {condition.get('message', '').strip()})", code
    )


def _condition(status: Object, kind: str) -> Object | None:
    for one in status.get("conditions") or []:
        if one.get("type") == kind and (kind != "DisruptionTarget" or one.get("status") == "True"):
            return dict(one)
    return None


def _said(state: Object) -> str:
    """The container's own last words (its termination message), shortened to a few lines.

    Both ends: a report says first what matters, and a log last.
    """
    words = " ".join((state.get("message") or "").split())
    shown = words if len(words) <= WORDS else f"{words[: WORDS // 2]} ... {words[-WORDS // 2 :]}"
    if engine.LACKING in words.replace("'", ""):
        return f": {shown}. The image lacks Tunewright's workloads. {engine.BUILD.format(base='IMAGE')}"
    return f": {shown}" if words else ""


def _where(pod: Object) -> str:
    meta = pod["metadata"]
    return f"-n {meta.get('namespace', 'default')} {meta['name']}"


def started(pod: Object) -> str | None:
    """When the pod began to hold its node: the kubelet took it."""
    return (pod.get("status") or {}).get("startTime")


def finished(pod: Object) -> str | None:
    """When the last container ended, None while one runs or where nobody said."""
    ends = []
    for one in (pod.get("status") or {}).get("containerStatuses") or []:
        end = ((one.get("state") or {}).get("terminated") or {}).get("finishedAt")
        if end is None:
            return None
        ends.append(end)
    return max(ends) if ends else None
