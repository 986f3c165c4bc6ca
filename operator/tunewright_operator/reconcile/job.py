"""One reconciliation of a FineTuneJob: read, plan, make what is missing, write status once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tunewright_operator import api
from tunewright_operator import plan as planner
from tunewright_operator.observe import conditions, times
from tunewright_operator.observe import job as judge
from tunewright_operator.observe import pods as looks
from tunewright_operator.observe import stage as looked
from tunewright_operator.observe.job import Facts, StageFacts, Verdict
from tunewright_operator.plan import cost, progress
from tunewright_operator.plan.stage import Plan
from tunewright_operator.reconcile import references, resources
from tunewright_operator.reconcile.cache import Key
from tunewright_operator.reconcile.children import NameTakenError
from tunewright_operator.reconcile.client import ApiError
from tunewright_operator.reconcile.resources import CONFIGMAP, EVENT, FINETUNEJOB, JOB, JOBSET, POD
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.progress import Progress

if TYPE_CHECKING:
    from tunewright_operator.reconcile.loop import Loop

Object = dict[str, Any]
logger = logging.getLogger(__name__)
_EVENTS_AFTER = 10.0
"""Seconds without a pod after which the API server's events are asked why."""
_LASTING = 5.0
"""Seconds after its start at which a workload's pods must still be refused: it was tried again by then."""


@dataclass(frozen=True)
class Planned:
    """A spec and what follows from it; `invalid` says why nothing does."""

    spec: api.FineTuneJobSpec | None
    plan: Plan | None
    invalid: str | None = None


def plan(known: Object, loop: Loop) -> Planned:
    """The plan of a job as it stands in the cache. A spec that cannot be planned is told, not raised."""
    try:
        resource = api.parse(api.FineTuneJob, resources.written(FINETUNEJOB, known), newer=True)
    except UserError as error:
        try:
            spec = api.FineTuneJobSpec.model_validate(known["spec"])
        except (UserError, ValidationError):
            spec = None
        return Planned(spec, None, error.text())
    try:
        # Suspension is ours to carry out: a job that is planned is one that runs.
        running = resource.model_copy(update={"spec": resource.spec.model_copy(update={"suspend": False})})
        return Planned(resource.spec, planner.job(running, loop.settings))
    except UserError as error:
        return Planned(resource.spec, None, error.text())


async def reconcile(loop: Loop, key: Key, known: Object, deep: bool) -> float | None:
    """Brings a job one step on. Returns the seconds after which it wants to be looked at again."""
    meta, old = known["metadata"], known["status"]
    planned = loop.planned(known, plan)
    if planned.spec is None:
        await _unreadable(loop, key, known, planned.invalid or "the spec cannot be read")
        return None
    if judge.expired(planned.spec, old, loop.clock.now()):
        logger.info("the job's time to live is over: deleting it")
        await loop.client.delete(FINETUNEJOB, key.namespace, key.name, meta["uid"])
        return None
    facts = await _facts(loop, known, planned)
    verdict = judge.observe(meta, planned.spec, old, facts, loop.clock.now())
    if verdict.start and judge.milestones(verdict.status) != judge.milestones(old):
        # The next stage's record replaces the last one's: what that said is kept before anything starts.
        await loop.writer.write(FINETUNEJOB, key, known, verdict.status, judge.quiet)
        loop.follow(key)
        loop.cache.forget_graves(meta["uid"], {p["metadata"]["uid"] for p in facts.gone})
        return 0.0
    if verdict.start and planned.plan is not None:
        verdict = await _start(loop, known, planned, facts, verdict, deep)
    waiting = await loop.writer.write(FINETUNEJOB, key, known, verdict.status, judge.quiet)
    if any(verdict.status.get(part) != old.get(part) for part in ("phase", "artifacts")):
        loop.follow(key)
    # Only now: what is written is what a restarted operator knows.
    loop.cache.forget_graves(meta["uid"], {p["metadata"]["uid"] for p in facts.gone})
    workloads = [w for w in (facts.workloads.get(name) for name in verdict.stop) if w is not None]
    workloads = [w for w in workloads if "deletionTimestamp" not in w["metadata"]]
    if workloads and not await _current(loop, key):
        return 0.5  # what we judged by is history, and the workload may be of a later day
    for workload in workloads:
        await _stop(loop, key, workload)
    delays = [d for d in (verdict.again, waiting) if d is not None]
    return min(delays) if delays else None


async def _facts(loop: Loop, known: Object, planned: Planned) -> Facts:
    meta = known["metadata"]
    uid, namespace = meta["uid"], meta["namespace"]
    spec = planned.spec
    assert spec is not None
    workloads: dict[str, Object | None] = {}
    if planned.plan is not None:
        workloads = {s.name: None for s in planned.plan.stages}
    for one in (*loop.cache.children(uid, JOB), *loop.cache.children(uid, JOBSET)):
        # A JobSet's own Jobs carry our labels too; the workload of a stage is what we own.
        stage = one["metadata"].get("labels", {}).get(judge.ledger.STAGE)
        if stage and (one["metadata"].get("owner") or {}).get("uid") == uid:
            workloads[stage] = one
    pods = await _pods(loop, known)
    record = await _last_words(loop, known, workloads)
    stages = (
        [StageFacts(s.name, s.job.get("parallelism", 1)) for s in planned.plan.stages] if planned.plan else []
    )
    missing: list[judge.Missing] = []
    idle = judge.ended(known["status"]) is not None or spec.suspend
    if not idle and not any(looks.find(p).shape is looks.Shape.RUNNING for p in pods):
        missing = await loop.references.missing(namespace, references.of_job(spec))
    chip, base = spec.accelerator.chip, spec.output.uri.rstrip("/")
    found = cost.quote(spec.accelerator, loop.settings.prices)
    names = {"adapter": f"{base}/checkpoints"}
    if spec.output.merge:
        names["merged"] = f"{base}/merged"
    return Facts(
        stages=stages,
        workloads=workloads,
        pods=pods,
        gone=loop.cache.graves(uid),
        progress=_record(record),
        invalid=planned.invalid,
        missing=missing,
        hint=await _hint(loop, workloads, pods),
        price=found.price.usd,
        priced=found.text(chip.name) if spec.accelerator.slice.chips else "",
        artifacts=names,
        preflight=_preflight(planned.plan, counted=spec.model.spec is not None),
    )


async def _pods(loop: Loop, known: Object) -> list[Object]:
    """The pods of a job. A run whose pod is neither known nor known to be gone is asked for before it
    counts as lost: the status may be another operator's, and our watch of the pods behind it."""
    uid, namespace = known["metadata"]["uid"], known["metadata"]["namespace"]
    runs = {run["uid"] for run in (known["status"].get("ledger") or {}).get("open") or []}
    seen = {p["metadata"]["uid"] for p in (*loop.cache.children(uid, POD), *loop.cache.graves(uid))}
    if runs - seen:
        async for body in loop.client.list(POD, namespace, f"{resources.UID_LABEL}={uid}"):
            loop.seen(POD, body)
    return loop.cache.children(uid, POD)


def _preflight(plan: Plan | None, counted: bool) -> Object | None:
    """What the static checks found; a plan exists only when they passed.

    counted: memory was counted. Of a model without a known shape it cannot be, and nothing is said of fitting.
    """
    if plan is None or not plan.notes:
        return None
    found: Object = {"message": " ".join(plan.notes)[:4096]}
    return {"fits": True, **found} if counted else found


async def _last_words(loop: Loop, known: Object, workloads: dict[str, Object | None]) -> Object | None:
    """The ConfigMap with the workload's record. When a stage has just ended it is asked for: the watch
    of the ConfigMaps may lag behind that of the Jobs, and the next stage writes over it."""
    namespace, name = known["metadata"]["namespace"], progress.config_map(known["metadata"]["name"])
    ended = {n for n, w in workloads.items() if w is not None and looked.complete(w)}
    if ended - judge.milestones(known["status"]):
        return await loop.client.get(CONFIGMAP, namespace, name)
    return loop.cache.get(CONFIGMAP, namespace, name)


def _record(config_map: Object | None) -> Progress | None:
    text = (config_map or {}).get("data", {}).get(progress.KEY)
    if not text:
        return None
    try:
        return Progress.model_validate_json(text)
    except ValidationError:
        return None  # the workload's to fix; status goes on without it


async def _hint(loop: Loop, workloads: dict[str, Object | None], pods: list[Object]) -> str | None:
    """Why a workload has no pods: quota, Pod Security and webhooks speak through events only.

    One refusal is no reason: a webhook that does not know a new workload yet takes it a second later.
    """
    now = loop.clock.now()
    for one in workloads.values():
        if one is None or pods or one["spec"].get("suspend") or one["status"].get("conditions"):
            continue
        # A Job that was suspended starts anew when it is resumed.
        since = one["status"].get("startTime") or one["metadata"].get("creationTimestamp")
        if since is None or times.between(since, now) < _EVENTS_AFTER:
            continue
        fields = f"involvedObject.uid={one['metadata']['uid']},type=Warning"
        found = [e async for e in loop.client.list(EVENT, one["metadata"]["namespace"], fields=fields)]
        refused = [e for e in found if e.get("reason") in ("FailedCreate", "FailedCreation")]
        if any(times.between(since, e.get("lastTimestamp") or since) >= _LASTING for e in refused):
            return str(refused[-1].get("message", ""))[:1000]
    return None


async def _start(
    loop: Loop, known: Object, planned: Planned, facts: Facts, verdict: Verdict, deep: bool
) -> Verdict:
    """Makes the children of the stage; a refusal becomes the status, because somebody has to act."""
    assert planned.plan is not None and planned.spec is not None
    stage = planned.plan.stage(verdict.start or "")
    there = facts.workloads.get(stage.name) is not None
    manifests = (*planned.plan.shared, *stage.manifests)
    if there:  # the workload in the cluster may be of another shape than today's plan: it stays
        manifests = tuple(m for m in manifests if m["kind"] not in ("Job", "JobSet"))
    if there and not deep:  # what nobody watches was made before the workload
        manifests = tuple(m for m in manifests if resources.of(m).watched)
    try:
        await loop.children.ensure(known["metadata"], "FineTuneJob", manifests, deep and there)
    except NameTakenError as error:
        return judge.blocked(verdict, known["metadata"], "NameTaken", str(error), loop.clock.now())
    except ApiError as error:
        if not error.final or error.reason == "NamespaceTerminating":
            raise
        message = f"the API server refuses a child: {error.message}"
        return judge.blocked(verdict, known["metadata"], "ChildRefused", message, loop.clock.now())
    return verdict


async def _current(loop: Loop, key: Key) -> bool:
    """Whether the job is in the API server as we know it. The watches are not in step with each other:
    beside an old status the Job of a resumed run, made by another operator, would look like a remnant."""
    known = loop.cache.get(FINETUNEJOB, key.namespace, key.name)
    live = await loop.client.get(FINETUNEJOB, key.namespace, key.name)
    if known is None or live is None:
        return False
    same = bool(live["metadata"]["resourceVersion"] == known["metadata"]["resourceVersion"])
    if not same:
        loop.seen(FINETUNEJOB, live)
    return same


async def _stop(loop: Loop, key: Key, workload: Object) -> None:
    """Ends a stage. The workload stays, marked as deleted, until its pods are gone: two trainers
    must never write to one output."""
    resource = JOBSET if workload["kind"] == "JobSet" else JOB
    meta = workload["metadata"]
    await loop.client.delete(resource, key.namespace, meta["name"], meta["uid"], wait=True)


async def _unreadable(loop: Loop, key: Key, known: Object, why: str) -> None:
    """A spec that this version cannot even read (written by a newer one): said, and left alone."""
    status = conditions.unreadable(known["metadata"], known["status"], why, loop.clock.now())
    await loop.writer.write(FINETUNEJOB, key, known, status, judge.quiet)
