"""One reconciliation of a ServeEndpoint: find the model, plan, keep the children, write status once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tunewright_operator import api
from tunewright_operator import plan as planner
from tunewright_operator.observe import benchmark, conditions
from tunewright_operator.observe import endpoint as judge
from tunewright_operator.observe.endpoint import REVISION, Facts, Source, Verdict
from tunewright_operator.plan import probes
from tunewright_operator.plan.names import child
from tunewright_operator.plan.stage import Plan
from tunewright_operator.reconcile import references
from tunewright_operator.reconcile.cache import Key
from tunewright_operator.reconcile.children import NameTakenError
from tunewright_operator.reconcile.client import ApiError
from tunewright_operator.reconcile.resources import (
    AUTOSCALER,
    CONFIGMAP,
    DEPLOYMENT,
    ENDPOINT,
    FINETUNEJOB,
    JOB,
    POD,
    POOL,
    SERVICE,
    written,
)
from tunewright_workloads.contract.faults import UserError

if TYPE_CHECKING:
    from tunewright_operator.reconcile.loop import Loop

Object = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parsed:
    """A spec, or why it cannot be read."""

    resource: api.ServeEndpoint | None
    invalid: str | None = None


def parse(known: Object, loop: Loop) -> Parsed:
    """The typed resource; made once a generation."""
    try:
        return Parsed(api.parse(api.ServeEndpoint, written(ENDPOINT, known), newer=True))
    except UserError as error:
        return Parsed(None, error.text())


def reference(known: Object) -> Key | None:
    """The job whose model an endpoint serves."""
    name = ((known["spec"].get("model") or {}).get("fineTuneJobRef") or {}).get("name")
    return Key("FineTuneJob", known["metadata"]["namespace"], name) if name else None


async def reconcile(loop: Loop, key: Key, known: Object, deep: bool) -> float | None:
    """Brings an endpoint one step on. Returns the seconds after which it wants to be looked at again."""
    meta, old = known["metadata"], known["status"]
    parsed: Parsed = loop.planned(known, parse)
    if parsed.resource is None:
        why = parsed.invalid or "the spec cannot be read"
        status = conditions.unreadable(meta, old, why, loop.clock.now())
        await loop.writer.write(ENDPOINT, key, known, status, judge.quiet)
        return None
    source, job = _source(loop, known)
    plan, invalid = _plan(loop, parsed.resource, source, job)
    facts = await _facts(loop, known, parsed.resource, source, plan, invalid)
    verdict = judge.observe(meta, parsed.resource.spec, old, facts, loop.clock.now())
    if plan is not None and verdict.want:
        verdict, writes = await _keep(loop, known, plan, verdict, deep)
        if writes:  # what we made ourselves brings no news when its event comes: look again
            loop.queue.add(key)
    waiting = await loop.writer.write(ENDPOINT, key, known, verdict.status, judge.quiet)
    if verdict.sweep and facts.revision:
        await _sweep(loop, key, meta["uid"], facts.revision)
    delays = [d for d in (verdict.again, waiting) if d is not None]
    return min(delays) if delays else None


def _source(loop: Loop, known: Object) -> tuple[Source, api.FineTuneJob | None]:
    """The model that is wanted, and the job that made it."""
    model = known["spec"]["model"]
    if model.get("uri"):
        return Source(True, model["uri"]), None
    key = reference(known)
    assert key is not None
    found = loop.cache.get(FINETUNEJOB, key.namespace, key.name)
    if found is None or "deletionTimestamp" in found["metadata"]:
        told = f'FineTuneJob "{key.name}" (spec.model.fineTuneJobRef) does not exist in this namespace'
        return Source(False, job=key.name, reason="ReferenceNotFound", message=told, stuck=True), None
    status = found["status"]
    phase = status.get("phase", "Pending")
    merged = (status.get("artifacts") or {}).get("merged") or {}
    if phase != "Succeeded" or not merged.get("uri"):
        if phase == "Failed":
            told = f'FineTuneJob "{key.name}" failed: {status.get("message", "")}'
            return Source(False, job=key.name, reason="JobFailed", message=told, stuck=True), None
        if phase == "Succeeded":
            told = f'FineTuneJob "{key.name}" publishes no merged model: set its spec.output.merge to true'
            return Source(False, job=key.name, reason="NotMerged", message=told, stuck=True), None
        # Not its phase: every step of the job would be a write of each endpoint that waits for it.
        told = f'waiting for FineTuneJob "{key.name}" to succeed'
        return Source(False, job=key.name, reason="WaitingForJob", message=told), None
    artifacts = status["artifacts"]
    lineage = {
        "base": found["spec"].get("model", {}).get("source"),
        "baseDigest": artifacts.get("baseDigest"),
        "datasetDigest": artifacts.get("datasetDigest"),
        "adapterDigest": (artifacts.get("adapter") or {}).get("digest"),
        "step": (status.get("checkpoint") or {}).get("step"),
    }
    digest = merged.get("digest") or f"{found['metadata']['uid']}"
    source = Source(True, merged["uri"], digest, key.name, lineage=lineage)
    try:
        return source, api.parse(api.FineTuneJob, written(FINETUNEJOB, found), newer=True)
    except (UserError, ValidationError):
        return source, None


def _plan(
    loop: Loop, resource: api.ServeEndpoint, source: Source, job: api.FineTuneJob | None
) -> tuple[Plan | None, str | None]:
    if not source.ready:
        return None, None
    try:
        return planner.endpoint(resource, loop.settings, job, uri=source.uri, digest=source.digest), None
    except UserError as error:
        return None, error.text()


async def _facts(
    loop: Loop,
    known: Object,
    resource: api.ServeEndpoint,
    source: Source,
    plan: Plan | None,
    invalid: str | None,
) -> Facts:
    meta = known["metadata"]
    uid, namespace, name = meta["uid"], meta["namespace"], meta["name"]
    deployments = loop.cache.children(uid, DEPLOYMENT)
    service = loop.cache.get(SERVICE, namespace, child(name, limit=63))
    ours = service is not None and (service["metadata"].get("owner") or {}).get("uid") == uid
    pointed = (service or {}).get("spec", {}).get("selector", {}).get(REVISION) if ours else None
    revision: str | None = None
    selector: str | None = None
    if plan is not None:
        serve = plan.stage("serve")
        revision = serve.workload["metadata"]["labels"][REVISION]
        labels = serve.workload["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
    elif deployments:
        # Nothing is planned while the model is away: what serves goes on as it is.
        revision = pointed or deployments[0]["metadata"].get("labels", {}).get(REVISION)
    wanted_missing = []
    if known["status"].get("phase") != "Ready":
        needed = references.of_endpoint(resource.spec, source.uri)
        wanted_missing = await loop.references.missing(namespace, needed)
    every = {o["metadata"]["name"]: o for o in loop.cache.children(uid, JOB)}
    jobs = {n: o for n, o in every.items() if o["metadata"].get("labels", {}).get(REVISION) == revision}
    filling = (
        next((s.workload["metadata"]["name"] for s in plan.stages if s.name == "warm"), None)
        if plan
        else None
    )
    return Facts(
        source=source,
        revision=revision,
        deployments=deployments,
        pods=loop.cache.children(uid, POD),
        gate=jobs.get(child(name, f"gate-{revision}")),
        bench=jobs.get(child(name, f"bench-{revision}")),
        figures=_figures(loop, namespace, name),
        warming=filling is not None,
        warm=every.get(filling) if filling else None,
        exposed=ours,
        pointed=pointed,
        url=probes.url(name, namespace),
        selector=selector,
        name=resource.served_name,
        invalid=invalid,
        missing=wanted_missing,
    )


def _figures(loop: Loop, namespace: str, name: str) -> Object | None:
    """What the last benchmark left in its ConfigMap."""
    record = loop.cache.get(CONFIGMAP, namespace, probes.benchmark_map(name))
    text = (record or {}).get("data", {}).get(probes.BENCHMARK_KEY)
    return benchmark.figures(text) if text else None


async def _keep(loop: Loop, known: Object, plan: Plan, verdict: Verdict, deep: bool) -> tuple[Verdict, int]:
    """Keeps what is wanted as planned; a refusal becomes the status, because somebody has to act.
    Returns how many writes it took, too."""
    meta, writes = known["metadata"], 0
    try:
        if "warm" in verdict.want:
            writes += await loop.children.ensure(meta, "ServeEndpoint", plan.stage("warm").manifests)
        if "serve" in verdict.want:
            if deep or not loop.cache.children(meta["uid"], DEPLOYMENT):
                writes += await loop.children.ensure(meta, "ServeEndpoint", plan.shared, deep)
            writes += await loop.children.keep(meta, "ServeEndpoint", plan.stage("serve").manifests, deep)
        if "gate" in verdict.want:
            writes += await loop.children.ensure(meta, "ServeEndpoint", plan.stage("gate").manifests)
        if "after" in verdict.want:
            writes += await loop.children.keep(meta, "ServeEndpoint", plan.after, deep)
            await _drop(loop, known, plan)
        if "bench" in verdict.want:
            writes += await loop.children.ensure(meta, "ServeEndpoint", plan.stage("bench").manifests)
    except NameTakenError as error:
        return judge.blocked(verdict, meta, "NameTaken", str(error), loop.clock.now()), 0
    except ApiError as error:
        if not error.final or error.reason == "NamespaceTerminating":
            raise
        message = f"the API server refuses a child: {error.message}"
        return judge.blocked(verdict, meta, "ChildRefused", message, loop.clock.now()), 0
    return verdict, writes


async def _drop(loop: Loop, known: Object, plan: Plan) -> None:
    """Deletes what a change of the spec made superfluous and nobody watches: once a generation."""
    meta = known["metadata"]
    place = f"{meta['uid']}/dropped"
    if loop.children.applied.get(place) == meta.get("generation"):
        return
    planned = {m["kind"] for m in plan.after}
    for resource, name in ((AUTOSCALER, child(meta["name"], "serve")), (POOL, child(meta["name"]))):
        if resource.kind in planned or (resource.optional and not loop.serves(resource)):
            continue
        live = await loop.client.get(resource, meta["namespace"], name)
        owners = (live or {}).get("metadata", {}).get("ownerReferences") or []
        if live is not None and any(o.get("uid") == meta["uid"] for o in owners):
            await loop.client.delete(resource, meta["namespace"], name, live["metadata"]["uid"])
    loop.children.applied[place] = meta.get("generation")


async def _sweep(loop: Loop, key: Key, uid: str, revision: str) -> None:
    """Deletes what older revisions left: the traffic has moved, their pods drain as they end."""
    for resource in (DEPLOYMENT, JOB, SERVICE, CONFIGMAP):
        for one in loop.cache.children(uid, resource):
            meta = one["metadata"]
            of = meta.get("labels", {}).get(REVISION)
            if of is None or of == revision or "deletionTimestamp" in meta:
                continue
            logger.info("deleting %s %s of revision %s", resource.kind, meta["name"], of)
            await loop.client.delete(resource, key.namespace, meta["name"], meta["uid"])
