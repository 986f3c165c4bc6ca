"""How far one stage is: its Job or JobSet, and the pods below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tunewright_operator.observe import pods as looks
from tunewright_operator.observe import times
from tunewright_operator.observe.pods import Finding, Shape

Object = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"


CREATING = "the pods are being created"


def queued(name: str) -> str:
    """What is said of a job that Kueue holds."""
    return f"waiting in queue {name} for quota"


class State(StrEnum):
    """Where a stage stands."""

    ABSENT = "Absent"
    QUEUED = "Queued"
    HELD = "Held"
    PROVISIONING = "Provisioning"
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"


@dataclass(frozen=True)
class Look:
    """What a stage shows now.

    message: what is going on, or what went wrong, in a user's words.
    reason:  one CamelCase word for a condition.
    stuck:   nothing will change unless somebody acts.
    fatal:   a restart would end the same way, whatever the Job's own policy thinks.
    """

    state: State
    reason: str = ""
    message: str = ""
    stuck: bool = False
    fatal: bool = False
    deleting: bool = False


def look(workload: Object | None, pods: Sequence[Object]) -> Look:
    """Reads a stage's workload (slim Job or JobSet) and its pods, newest meaning first."""
    if workload is None:
        return Look(State.ABSENT)
    found = [(p, looks.find(p)) for p in pods if not _replaced(p, pods)]
    conditions = _true(workload)
    deleting = "deletionTimestamp" in workload["metadata"]
    if complete(workload):
        return Look(State.DONE, deleting=deleting)
    fatal = next((f for _, f in found if f.shape in looks.FATAL), None)
    ended = conditions.get("Failed") or conditions.get("FailureTarget")
    if ended:
        cause = fatal or _last_failure(pods)
        reason = cause.shape.value if cause else ended.get("reason") or "Failed"
        said = cause.message if cause else f"{ended.get('reason', 'Failed')}: {ended.get('message', '')}"
        if ended.get("reason") == "DeadlineExceeded":
            reason, said = "DeadlineExceeded", ended.get("message") or "the stage ran longer than it may"
        return Look(State.FAILED, reason, said, stuck=True, fatal=fatal is not None, deleting=deleting)
    if fatal:
        return Look(State.FAILED, fatal.shape.value, fatal.message, stuck=True, fatal=True, deleting=deleting)
    if workload["spec"].get("suspend"):
        if workload["metadata"].get("labels", {}).get(QUEUE):
            name = workload["metadata"]["labels"][QUEUE]
            return Look(State.QUEUED, "Queued", queued(name), deleting=deleting)
        return Look(
            State.HELD,
            "Held",
            f"{workload['kind']} {workload['metadata']['name']} was suspended by somebody else; "
            "set its spec.suspend to false to go on",
            deleting=deleting,
        )
    live = [f for _, f in found if not f.ended]
    if not live and any(f.shape is Shape.SUCCEEDED for _, f in found):
        # The workload's own controller is about to say so.
        return Look(State.RUNNING, "Finishing", deleting=deleting)
    return _alive(live, _last_failure(pods), deleting)


def complete(workload: Object) -> bool:
    """Whether a Job or JobSet has ended well."""
    return not {"Complete", "Completed"}.isdisjoint(_true(workload))


def _true(workload: Object) -> dict[str, Object]:
    return {c["type"]: c for c in workload["status"].get("conditions") or [] if c.get("status") == "True"}


def _alive(live: list[Finding], failure: Finding | None, deleting: bool) -> Look:
    for shape in (*looks.NEEDS_SOMEBODY, Shape.CRASHING):
        stuck = next((f for f in live if f.shape is shape), None)
        if stuck:
            return Look(State.PROVISIONING, shape.value, stuck.message, stuck=True, deleting=deleting)
    after = f" The last one: {failure.message}" if failure else ""
    waiting = next((f for f in live if f.shape is Shape.UNSCHEDULABLE), None)
    if waiting:
        return Look(
            State.PROVISIONING, "Unschedulable", f"waiting for a node: {waiting.message}{after}", deleting=deleting
        )  # fmt: skip
    starting = next((f for f in live if f.shape is Shape.STARTING), None)
    if starting:
        return Look(State.PROVISIONING, "Starting", starting.message + after, deleting=deleting)
    if live:
        return Look(State.RUNNING, "Running", deleting=deleting)
    if failure and failure.shape is Shape.REPAIR:
        return Look(State.PROVISIONING, "NodeRepair", failure.message, deleting=deleting)
    if failure:
        return Look(State.PROVISIONING, "Restarting", f"starting again.{after}", deleting=deleting)
    return Look(State.PROVISIONING, "Creating", CREATING, deleting=deleting)


def _replaced(pod: Object, pods: Sequence[Object]) -> bool:
    """Whether a newer pod stands in this one's place: what it showed is history."""
    place = _place(pod)
    own = pod["metadata"].get("creationTimestamp", "")
    return any(
        p is not pod and _place(p) == place and p["metadata"].get("creationTimestamp", "") > own for p in pods
    )


def _place(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-completion-index", "0"))


def _last_failure(pods: Sequence[Object]) -> Finding | None:
    """Of the pods that ended badly the one that ended last."""
    bad = []
    for pod in pods:
        finding = looks.find(pod)
        if finding.ended and finding.shape is not Shape.SUCCEEDED:
            end = looks.finished(pod) or pod["metadata"].get("creationTimestamp", "")
            bad.append((times.parse(end).timestamp() if end else 0.0, finding))
    return max(bad, key=lambda pair: pair[0])[1] if bad else None
