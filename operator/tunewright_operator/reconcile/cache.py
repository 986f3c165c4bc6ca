"""What the operator knows of the cluster: of every object the few fields that decisions need.

A Pod of 6 kB becomes 600 bytes. What is kept is chosen here, kind by kind, so a decision can only
rest on what is listed; a field that is missing here is missing in every test, too.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tunewright_operator.plan import probes, progress
from tunewright_operator.reconcile import resources
from tunewright_operator.reconcile.resources import UID_LABEL, Resource

Object = dict[str, Any]
_CHIPS = ("google.com/tpu", "nvidia.com/gpu")
_OURS = "tunewright.dev/"
_RECORDS = (progress.KEY, probes.BENCHMARK_KEY)
"""What the relays write into ConfigMaps."""
_LABELS = frozenset(
    {"batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name", "kueue.x-k8s.io/queue-name"}
)


@dataclass(frozen=True, slots=True)
class Ref:
    """Names one object."""

    resource: Resource
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Key:
    """Names one of our own resources: what the work queue holds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def _pick(source: Object | None, *names: str) -> Object:
    return {n: source[n] for n in names if source and source.get(n) not in (None, {}, [])}


def _conditions(status: Object, *kinds: str) -> list[Object]:
    return [
        _pick(c, "type", "status", "reason", "message", "lastTransitionTime")
        for c in status.get("conditions") or []
        if not kinds or c.get("type") in kinds
    ]


def _state(status: Object) -> Object:
    """One container's status: its states and how often it was restarted."""
    kept = _pick(status, "name", "ready", "restartCount")
    for key in ("state", "lastState"):
        states = {
            name: _pick(state, "reason", "message", "exitCode", "startedAt", "finishedAt")
            for name, state in (status.get(key) or {}).items()
        }
        if states:
            kept[key] = states
    return kept


def _pod(body: Object) -> Object:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    chips = 0
    for container in spec.get("containers") or []:
        requests = (container.get("resources") or {}).get("requests") or {}
        chips += sum(int(requests.get(name, 0)) for name in _CHIPS)
    kept = _pick(status, "phase", "reason", "message", "startTime")
    kept["conditions"] = _conditions(status, "DisruptionTarget", "PodScheduled", "Ready")
    for key in ("initContainerStatuses", "containerStatuses"):
        if status.get(key):
            kept[key] = [_state(s) for s in status[key]]
    return {"spec": {**_pick(spec, "nodeName"), "chips": chips}, "status": kept}


def _job(body: Object) -> Object:
    status = body.get("status") or {}
    kept = _pick(status, "active", "ready", "succeeded", "failed", "startTime", "completionTime")
    kept["conditions"] = _conditions(status)
    return {"spec": _pick(body.get("spec"), "suspend", "parallelism", "backoffLimit"), "status": kept}


def _jobset(body: Object) -> Object:
    status = body.get("status") or {}
    kept = _pick(status, "restarts", "restartsCountTowardsMax", "terminalState")
    kept["conditions"] = _conditions(status)
    return {"spec": _pick(body.get("spec"), "suspend"), "status": kept}


def _deployment(body: Object) -> Object:
    status = body.get("status") or {}
    kept = _pick(
        status, "observedGeneration", "replicas", "updatedReplicas", "readyReplicas", "availableReplicas"
    )
    kept["conditions"] = _conditions(status)
    return {"spec": _pick(body.get("spec"), "replicas", "paused"), "status": kept}


def _configmap(body: Object) -> Object:
    data = body.get("data") or {}
    text = json.dumps(data, sort_keys=True).encode()
    kept: Object = {"mark": hashlib.sha256(text).hexdigest()[:16]}
    records = {key: data[key] for key in _RECORDS if key in data}
    if records:
        kept["data"] = records
    return kept


def _service(body: Object) -> Object:
    spec = _pick(body.get("spec"), "ports", "selector", "type", "clusterIP")
    text = json.dumps(spec, sort_keys=True).encode()
    return {"mark": hashlib.sha256(text).hexdigest()[:16], "spec": _pick(spec, "clusterIP", "selector")}


def _own(body: Object) -> Object:
    # As text: as dictionaries a thousand of them are 20 MB, and most are only looked at now and then.
    kept = {"spec": body.get("spec") or {}, "status": body.get("status") or {}}
    return {"text": json.dumps(kept, separators=(",", ":"))}


def _thaw(kept: Object) -> Object:
    """An object as decisions see it: our own resources with spec and status."""
    if "text" not in kept:
        return kept
    return {"kind": kept["kind"], "metadata": kept["metadata"], **json.loads(kept["text"])}


_KEEP: dict[str, Callable[[Object], Object]] = {
    "Pod": _pod, "Job": _job, "JobSet": _jobset, "Deployment": _deployment, "ConfigMap": _configmap,
    "Service": _service, "FineTuneJob": _own, "ServeEndpoint": _own,
}  # fmt: skip


def slim(resource: Resource, body: Object) -> Object:
    """The kept part of an object."""
    meta = body["metadata"]
    kept = _pick(
        meta, "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"
    )  # fmt: skip
    labels = {
        sys.intern(k): sys.intern(v)
        for k, v in (meta.get("labels") or {}).items()
        if k.startswith(_OURS) or k in _LABELS
    }
    if labels:
        kept["labels"] = labels
    notes = {k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(_OURS)}
    if notes:
        kept["annotations"] = notes
    owners = [
        _pick(o, "kind", "name", "uid") for o in meta.get("ownerReferences") or [] if o.get("controller")
    ]
    if owners:
        kept["owner"] = owners[0]
    return {"kind": resource.kind, "metadata": kept, **_KEEP[resource.kind](body)}


def version(body: Object) -> int:
    """The resource version as a number: since Kubernetes 1.35 it is defined to be one."""
    try:
        return int(body["metadata"].get("resourceVersion", 0))
    except ValueError:
        return 0


@dataclass
class Cache:
    """Slim objects by reference and by the uid of the resource they belong to."""

    _objects: dict[Ref, Object] = field(default_factory=dict)
    _children: dict[str, set[Ref]] = field(default_factory=dict)
    _own: dict[str, Key] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    _graves: dict[str, dict[str, Object]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, resource: Resource, body: Object) -> Key | None:
        """Takes an object in. Returns the key of the resource it concerns when it brought news.

        An object that is older than what is known, or just as old, brings none: the echo of our own
        write costs nothing, and a slow stream cannot undo what a response already told.
        """
        meta = body["metadata"]
        ref = Ref(resource, meta.get("namespace", ""), meta["name"])
        known = self._objects.get(ref)
        if known is not None and version(known) >= version(body):
            return None
        if meta.get("uid") in self._gone:  # a late echo of something that was already deleted
            return None
        if known is not None and known["metadata"]["uid"] != meta.get("uid"):
            self._forget(ref, known)
        kept = slim(resource, body)
        self._objects[ref] = kept
        if resource.group == resources.OWN_GROUP:
            key = Key(resource.kind, ref.namespace, ref.name)
            self._own[kept["metadata"]["uid"]] = key
            return key
        uid = kept["metadata"].get("labels", {}).get(UID_LABEL)
        if uid is None:
            return None
        self._children.setdefault(uid, set()).add(ref)
        return self._own.get(uid)

    def remove(self, resource: Resource, body: Object) -> Key | None:
        """Takes an object out. Returns the key of the resource it concerned."""
        meta = body["metadata"]
        ref = Ref(resource, meta.get("namespace", ""), meta["name"])
        self._bury(meta.get("uid"), version(body))
        known = self._objects.get(ref)
        if known is None or known["metadata"]["uid"] != meta.get("uid"):
            return None
        uid = known["metadata"].get("labels", {}).get(UID_LABEL)
        if resource is resources.POD and uid in self._own:
            # A comparison finds it missing and knows no more than we do; an event shows how it ended.
            last = known if "chips" in (body.get("spec") or {}) else slim(resource, body)
            self._graves.setdefault(uid, {})[meta["uid"]] = last
        self._forget(ref, known)
        if resource.group == resources.OWN_GROUP:
            return Key(resource.kind, ref.namespace, ref.name)
        return self._own.get(uid) if uid else None

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        kept = self._objects.get(Ref(resource, namespace, name))
        return None if kept is None else _thaw(kept)

    def children(self, uid: str, resource: Resource | None = None) -> list[Object]:
        """What belongs to the resource with this uid, by name."""
        refs = self._children.get(uid, ())
        found = [r for r in refs if resource is None or r.resource is resource]
        return [self._objects[r] for r in sorted(found, key=lambda r: (r.resource.kind, r.name))]

    def graves(self, uid: str) -> list[Object]:
        """Pods as they were when they were deleted, until their end was accounted for: a pod may
        fail and be deleted between two looks."""
        return list(self._graves.get(uid, {}).values())

    def forget_graves(self, uid: str, pods: set[str]) -> None:
        """The end of these pods stands in the status now."""
        graves = self._graves.get(uid, {})
        for pod in pods:
            graves.pop(pod, None)
        if not graves:
            self._graves.pop(uid, None)

    def all(self, resource: Resource) -> Iterator[Object]:
        return (_thaw(o) for r, o in self._objects.items() if r.resource is resource)

    def snapshot(self, resource: Resource) -> list[Object]:
        """Every object of a kind as it is kept, as a list that later changes do not touch."""
        return [o for r, o in self._objects.items() if r.resource is resource]

    def ours(self) -> list[Key]:
        """Our own resources."""
        return list(self._own.values())

    def _forget(self, ref: Ref, known: Object) -> None:
        self._objects.pop(ref, None)
        uid = known["metadata"]["uid"]
        if ref.resource.group == resources.OWN_GROUP:
            self._own.pop(uid, None)
            self._graves.pop(uid, None)
            return
        owner = known["metadata"].get("labels", {}).get(UID_LABEL)
        refs = self._children.get(owner) if owner else None
        if refs is not None:
            refs.discard(ref)
            if not refs:
                del self._children[owner]

    def _bury(self, uid: str | None, at: int) -> None:
        if uid is None:
            return
        self._gone[uid] = at
        while len(self._gone) > 4096:
            self._gone.pop(next(iter(self._gone)))
