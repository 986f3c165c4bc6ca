"""A ServeEndpoint: what its Deployment, pods, gate and benchmark show -> its status, and what is next.

Ready speaks of what is wanted now: the wanted model, verified, on all its replicas. Available says
whether anything answers; during a rollout, or after one that failed, that may be the old model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tunewright_operator.api.endpoint import ServeEndpointSpec
from tunewright_operator.observe import conditions, stage, times
from tunewright_operator.observe import pods as looks
from tunewright_operator.observe.conditions import Condition, Truth
from tunewright_operator.observe.job import Missing
from tunewright_operator.observe.pods import Finding, Shape
from tunewright_operator.observe.stage import State

Object = dict[str, Any]
REVISION = "tunewright.dev/revision"
STAGE = "tunewright.dev/stage"


@dataclass(frozen=True)
class Source:
    """The model that is wanted.

    ready:   it can be served; uri and digest say what it is.
    stuck:   it will not become ready unless somebody acts.
    serving: an earlier model is deployed and stays as it is meanwhile.
    """

    ready: bool
    uri: str | None = None
    digest: str | None = None
    job: str | None = None
    reason: str = ""
    message: str = ""
    stuck: bool = False
    lineage: Object = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """Everything that is looked at.

    revision:    of the plan; None while there is none.
    deployments: slim, of all revisions. pods: slim, of server, gate and benchmark.
    gate, bench: slim Jobs of this revision. figures: what the last benchmark, of whatever revision, left behind.
    warming:     a Job that fills the compile cache is planned. warm: that Job, slim.
    exposed:     the Service is there. pointed: the one revision that it selects; None: any.
    """

    source: Source
    revision: str | None = None
    deployments: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    gate: Object | None = None
    bench: Object | None = None
    figures: Object | None = None
    warming: bool = False
    warm: Object | None = None
    exposed: bool = False
    pointed: str | None = None
    url: str | None = None
    selector: str | None = None
    name: str | None = None
    invalid: str | None = None
    missing: Sequence[Missing] = ()

    @property
    def moved(self) -> bool:
        """Whether the traffic goes to this revision."""
        return self.exposed and self.pointed in (None, self.revision)


@dataclass(frozen=True)
class Verdict:
    """The status as it should be, and what has to be there: any of warm, serve, gate, after, bench; `sweep`
    says that what older revisions left can go."""

    status: Object
    want: tuple[str, ...] = ()
    sweep: bool = False
    again: float | None = None


@dataclass(frozen=True)
class _Say:
    phase: str
    reason: str
    message: str
    ready: Truth = "Unknown"
    stalled: bool = False
    done: bool = False


def observe(meta: Object, spec: ServeEndpointSpec, old: Object, facts: Facts, now: datetime) -> Verdict:
    """Judges an endpoint. `meta` is the slim metadata, `old` the status as it stands."""
    say, want, again = _walk(spec, facts)
    status = dict(old)
    generation = meta.get("generation", 0)
    status["phase"], status["message"] = say.phase, say.message[:4096]
    status["observedGeneration"] = generation
    if facts.url:
        status["url"] = facts.url
    if facts.selector:
        status["selector"] = facts.selector
    status["replicas"] = sum(d["status"].get("replicas", 0) for d in facts.deployments)
    status["readyReplicas"] = sum(d["status"].get("readyReplicas", 0) for d in facts.deployments)
    if say.ready == "True" and facts.source.ready:
        shown = {
            "name": facts.name,
            "uri": facts.source.uri,
            "digest": facts.source.digest,
            "job": facts.source.job,
            **facts.source.lineage,
        }
        status["model"] = {k: v for k, v in shown.items() if v is not None}
    _benchmark(status, facts, generation, now)
    answering = facts.exposed and any(_ready(p) for p in _servers(facts, facts.pointed))
    said = [
        Condition("Ready", say.ready, say.reason, say.message),
        Condition("Reconciling", "False" if say.stalled or say.done else "True", say.reason, say.message),
        Condition(
            "Stalled", "True" if say.stalled else "False", say.reason, say.message if say.stalled else ""
        ),
        Condition(
            "Available",
            "True" if answering else "False",
            "Answering" if answering else "NoReadyPod",
            "" if answering else "no verified server is ready",
        ),
        Condition(
            "ModelAvailable",
            "True" if facts.source.ready else "False" if facts.source.stuck else "Unknown",
            "Published" if facts.source.ready else facts.source.reason,
            facts.source.message,
        ),
    ]
    status["conditions"] = conditions.merge(status.get("conditions") or [], said, generation, now)
    return Verdict(status, want, sweep=say.ready == "True" and facts.moved, again=again)


def _walk(spec: ServeEndpointSpec, facts: Facts) -> tuple[_Say, tuple[str, ...], float | None]:
    source = facts.source
    if facts.invalid:
        return _Say("Failed", "Invalid", facts.invalid, "False", stalled=True), (), None
    if not source.ready and (facts.revision is None or not facts.deployments):
        truth: Truth = "False" if source.stuck else "Unknown"
        return (
            _Say("Pending", source.reason, source.message, truth, source.stuck),
            (),
            30.0 if source.stuck else None,
        )
    current = [
        d for d in facts.deployments if d["metadata"].get("labels", {}).get(REVISION) == facts.revision
    ]
    if not current:
        if facts.missing:
            return _lacks(facts), (), 10.0
        say = _warming(facts)
        if say:
            return say, ("warm",), None
        return _Say("Provisioning", "Starting", f"starting the server{_cold(facts)}"), ("serve",), None
    found = _servers(facts, facts.revision)
    want: list[str] = ["serve"]
    verified, refused = _verified(spec, facts)
    ready = [p for p in found if _ready(p)]
    if spec.rollout.gate and ready and not refused:
        want.append("gate")
    if verified:
        want.append("after")
    deployment = current[0]
    wanted = deployment["spec"].get("replicas", 1) if spec.autoscaling else spec.replicas
    if wanted == 0:
        if found:
            return _Say("Stopped", "ScalingDown", "the servers are ending"), tuple(want), None
        stopped = "scaled to zero: nothing answers and no slice is held. Raise spec.replicas to start again."
        return _Say("Stopped", "ScaledToZero", stopped, done=True), tuple(want), None
    if refused:
        return _Say("Failed", "GateFailed", refused, "False", stalled=True), tuple(want), None
    if verified and facts.moved and _complete(deployment, wanted):
        if spec.benchmark is not None:
            want.append("bench")
        note = f"{source.message} " if not source.ready else ""
        say = _Say("Ready", "Ready", f"{note}{facts.name} answers at {facts.url}".strip(), "True", done=True)
        return say, tuple(want), None
    say = _rising(facts, deployment, found, bool(ready), verified)
    return say, tuple(want), 10.0 if facts.missing else None


def _warm(facts: Facts) -> stage.Look:
    return stage.look(facts.warm, [p for p in facts.pods if p["metadata"]["labels"].get(STAGE) == "warm"])


def _warming(facts: Facts) -> _Say | None:
    """The compile cache is being filled, before the first server: one that is there holds the slice, and
    fills the cache itself."""
    if not facts.warming or facts.deployments:
        return None
    seen = _warm(facts)
    if seen.state in (State.DONE, State.FAILED):
        return None
    told = f": {seen.message}" if seen.message else ""
    said: Truth = "False" if seen.stuck else "Unknown"
    return _Say(
        "Provisioning", "FillingCompileCache", f"filling the compile cache{told}", said, stalled=seen.stuck
    )


def _cold(facts: Facts) -> str:
    """That the cache could not be filled: the server starts all the same, and compiles."""
    if not facts.warming or facts.warm is None:
        return ""
    seen = _warm(facts)
    if seen.state is not State.FAILED:
        return ""
    return f"; it compiles by itself, because the compile cache could not be filled: {seen.message}"


def _lacks(facts: Facts) -> _Say:
    message = "; ".join(str(m) for m in facts.missing) + ". The endpoint goes on once it is there."
    return _Say("Pending", "ReferenceNotFound", message, "False", stalled=True)


def _rising(facts: Facts, deployment: Object, found: Sequence[Object], ready: bool, verified: bool) -> _Say:
    """A server on its way up: how far it is, or what it is stuck on."""
    findings = [looks.find(p) for p in found]
    for shape in (*looks.NEEDS_SOMEBODY, Shape.CRASHING):
        stuck = next((f for f in findings if f.shape is shape), None)
        if stuck:
            return _Say("Failed", shape.value, stuck.message, "False", stalled=True)
    if facts.missing:
        return _lacks(facts)
    told = {c["type"]: c for c in deployment["status"].get("conditions") or []}
    failure = told.get("ReplicaFailure", {})
    if failure.get("status") == "True":
        return _Say("Provisioning", "PodsRefused", failure.get("message", ""), "False", stalled=True)
    late = told.get("Progressing", {})
    if late.get("reason") == "ProgressDeadlineExceeded":
        last = _worst(findings)
        message = f"the server did not become ready in time. {last}".strip()
        return _Say("Failed", "ProgressDeadlineExceeded", message, "False", stalled=True)
    waiting = next((f for f in findings if f.shape is Shape.UNSCHEDULABLE), None)
    if waiting:
        return _Say("Provisioning", "Unschedulable", f"waiting for a node: {waiting.message}")
    if ready and not verified:
        return _Say(
            "Verifying", "Verifying", "comparing the server's answers with those recorded at the merge"
        )
    if ready:
        return _Say("Starting", "RollingOut", "waiting for all replicas")
    if any(f.shape is Shape.RUNNING for f in findings):
        return _Say("Starting", "Starting", f"the server is loading the model{_cold(facts)}")
    return _Say("Provisioning", "Starting", "the pods are starting")


def _worst(findings: Sequence[Finding]) -> str:
    return next((f.message for f in findings if f.message), "")


def _verified(spec: ServeEndpointSpec, facts: Facts) -> tuple[bool, str | None]:
    """Whether the gate has passed, and what it said when it did not."""
    if not spec.rollout.gate:
        return True, None
    probes = [p for p in facts.pods if p["metadata"].get("labels", {}).get("tunewright.dev/stage") == "gate"]
    probes = [p for p in probes if p["metadata"]["labels"].get(REVISION) == facts.revision]
    seen = stage.look(facts.gate, probes)
    if seen.state is State.DONE:
        return True, None
    if seen.state is State.FAILED:
        return False, f"the model was refused by its gate: {seen.message}"
    return False, None


def _benchmark(status: Object, facts: Facts, generation: int, now: datetime) -> None:
    """Figures name what they were measured on, and go when neither the wanted nor the serving revision is it."""
    before = status.pop("benchmark", None) or {}
    if facts.revision is None or before.get("revision") in (facts.revision, facts.pointed or facts.revision):
        shown = before
    else:
        shown = {}
    # Until its Job has ended the figures are those of the benchmark before.
    if facts.figures and stage.look(facts.bench, []).state is State.DONE:
        made = {**facts.figures, "revision": facts.revision}
        if {k: v for k, v in before.items() if k not in ("time", "generation")} != made:
            shown = {**made, "generation": generation, "time": times.show(now)}
    if shown:
        status["benchmark"] = shown


def _servers(facts: Facts, revision: str | None) -> list[Object]:
    """The server's pods, of one revision or of all, without those that are ending."""
    return [
        p
        for p in facts.pods
        if p["metadata"].get("labels", {}).get("tunewright.dev/stage") == "serve"
        and (revision is None or p["metadata"]["labels"].get(REVISION) == revision)
        and "deletionTimestamp" not in p["metadata"]
    ]


def _ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or [])


def _complete(deployment: Object, wanted: int) -> bool:
    """Whether every replica is of the newest template and available."""
    status = deployment["status"]
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        and status.get("updatedReplicas", 0) >= wanted
        and status.get("replicas", 0) == status.get("updatedReplicas", 0)
        and status.get("availableReplicas", 0) >= wanted
    )


def quiet(status: Object) -> Object:
    """The status without what changes by itself: is it worth a write of its own?"""
    return conditions.quiet(status, "message")


def blocked(verdict: Verdict, meta: Object, reason: str, message: str, now: datetime) -> Verdict:
    """The verdict on an endpoint whose children cannot be made until somebody acts."""
    status = conditions.blocked(verdict.status, meta, reason, message, now)
    return Verdict(status, (), again=30.0)
