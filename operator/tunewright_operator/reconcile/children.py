"""Children: made once or kept as planned, owned by their resource, found by its uid.

A FineTuneJob's children are created and then left alone: a newer operator with other images
changes nothing about a job that runs, and what Kueue or JobSet write into a Job stays theirs.
A ServeEndpoint's are kept as planned by server-side apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tunewright_operator.reconcile import patches, resources
from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.client import ApiError, Client
from tunewright_operator.reconcile.resources import UID_LABEL, Resource

Object = dict[str, Any]
APPLIED = "tunewright.dev/applied"
"""Annotation with the digest of what we applied last: a restarted operator compares before it writes."""


_WAVE = {"RoleBinding": 1, "Job": 2, "JobSet": 2, "Deployment": 2}
"""A binding is refused while its role is missing; a workload comes last."""


class NameTakenError(Exception):
    """An object of a child's name exists and belongs to somebody else."""


class NotYetError(Exception):
    """An object of a child's name is going away; the key comes again in a moment."""


def adopt(manifest: Object, owner: Object, kind: str) -> Object:
    """The manifest as a child: ownerReferences for the garbage collector, the uid label on it and on
    every pod (and Job) template inside, so that whatever is made of them is found by it."""
    body: Object = _labelled(manifest, owner["uid"])
    meta = body["metadata"]
    meta.setdefault("namespace", owner["namespace"])
    meta["ownerReferences"] = [
        {
            "apiVersion": f"{resources.OWN_GROUP}/v1alpha1",
            "kind": kind,
            "name": owner["name"],
            "uid": owner["uid"],
            "controller": True,
        }
    ]
    return body


def _labelled(part: Any, uid: str) -> Any:
    """A copy with the uid label on every object and every template in it."""
    if isinstance(part, list):
        return [_labelled(item, uid) for item in part]
    if not isinstance(part, dict):
        return part
    copy = {key: _labelled(value, uid) for key, value in part.items()}
    if "kind" in part and "metadata" in part:
        copy["metadata"].setdefault("labels", {})[UID_LABEL] = uid
    template = copy.get("template")
    if isinstance(template, dict) and "spec" in template:
        template.setdefault("metadata", {}).setdefault("labels", {})[UID_LABEL] = uid
    return copy


@dataclass
class Children:
    """Creates and applies children. `applied` remembers, by uid, the generation (or content) that
    our last apply left behind: a difference is somebody else's hand."""

    client: Client
    cache: Cache
    applied: dict[str, Any] = field(default_factory=dict)

    async def ensure(self, owner: Object, kind: str, manifests: Iterable[Object], deep: bool = False) -> int:
        """Creates what is not there and touches nothing that is. Returns how many were made.

        What a workload needs comes before it, at once where nothing depends on the other: when the
        workload is there, everything is. deep: most of it is there; ask first for what nobody
        watches, instead of trying to create it.

        Raises NameTakenError, NotYetError, or the API server's refusal.
        """
        waves: dict[int, list[Object]] = {}
        for manifest in manifests:
            waves.setdefault(_WAVE.get(manifest["kind"], 0), []).append(manifest)
        made = 0
        for _, wave in sorted(waves.items()):
            done = await asyncio.gather(
                *(self._one(owner, kind, m, deep) for m in wave), return_exceptions=True
            )
            for result in done:
                if isinstance(result, BaseException):
                    raise result
                made += result
        return made

    async def _one(self, owner: Object, kind: str, manifest: Object, deep: bool) -> int:
        resource = resources.of(manifest)
        name = manifest["metadata"]["name"]
        known = self.cache.get(resource, owner["namespace"], name) if resource.watched else None
        if known is not None:
            self._check(known, owner)
            return 0
        if deep and not resource.watched:
            found = await self.client.get(resource, owner["namespace"], name)
            if found is not None:
                self._check_live(found, owner)
                return 0
        made = 1
        try:
            live = await self.client.create(resource, owner["namespace"], adopt(manifest, owner, kind))
        except ApiError as error:
            if not (error.conflict and error.reason == "AlreadyExists"):
                raise
            found = await self.client.get(resource, owner["namespace"], name)
            if found is None:
                raise NotYetError(f"{resource.kind} {name} has just been deleted") from None
            self._check_live(found, owner)
            live, made = found, 0
        if resource.watched:
            self.cache.put(resource, live)
        return made

    async def keep(self, owner: Object, kind: str, manifests: Iterable[Object], deep: bool = False) -> int:
        """Applies what is not as planned. Returns how many writes that took.

        deep: look at the live objects too, for what the watch does not show (or nobody watches).
        """
        writes = 0
        for manifest in manifests:
            resource = resources.of(manifest)
            name = manifest["metadata"]["name"]
            body = adopt(manifest, owner, kind)
            wanted = patches.digest(body)
            body["metadata"].setdefault("annotations", {})[APPLIED] = wanted
            known = self.cache.get(resource, owner["namespace"], name) if resource.watched else None
            if known is not None:
                self._check(known, owner)
                if self._as_planned(known, wanted) and not deep:
                    continue
            elif (
                not resource.watched
                and self.applied.get(_place(owner, resource, name)) == wanted
                and not deep
            ):
                continue
            if known is None or deep:
                live = await self.client.get(resource, owner["namespace"], name)
                if live is not None:
                    self._check_live(live, owner)
                    if patches.covers(live, body):
                        self._remember(owner, resource, live, wanted)
                        continue
            live = await self.client.apply(resource, owner["namespace"], body)
            writes += 1
            self._remember(owner, resource, live, wanted)
        return writes

    def forget(self, uid: str) -> None:
        """The owner is gone."""
        for place in [p for p in self.applied if p.startswith(f"{uid}/")]:
            del self.applied[place]

    def _as_planned(self, known: Object, wanted: str) -> bool:
        meta = known["metadata"]
        if meta.get("annotations", {}).get(APPLIED) != wanted:
            return False
        mark = _mark(known)
        return bool(self.applied.setdefault(meta["uid"], mark) == mark)

    def _remember(self, owner: Object, resource: Resource, live: Object, wanted: str) -> None:
        if not resource.watched:
            self.applied[_place(owner, resource, live["metadata"]["name"])] = wanted
            return
        self.cache.put(resource, live)
        known = self.cache.get(resource, owner["namespace"], live["metadata"]["name"])
        if known is not None:
            self.applied[known["metadata"]["uid"]] = _mark(known)

    def _check(self, known: Object, owner: Object) -> None:
        holder = known["metadata"].get("owner") or {}
        _belongs(known["metadata"], holder.get("uid"), holder.get("kind"), owner, known.get("kind", ""))

    def _check_live(self, live: Object, owner: Object) -> None:
        holders = [o for o in live["metadata"].get("ownerReferences") or [] if o.get("controller")]
        holder = holders[0] if holders else {}
        _belongs(live["metadata"], holder.get("uid"), holder.get("kind"), owner, live.get("kind", ""))


def _belongs(meta: Object, uid: str | None, holder: str | None, owner: Object, kind: str) -> None:
    if uid == owner["uid"]:
        return
    if meta.get("deletionTimestamp") or holder in ("FineTuneJob", "ServeEndpoint"):
        raise NotYetError(f"{kind} {meta['name']} of a deleted resource of the same name is going away")
    raise NameTakenError(
        f"{kind} {meta['name']} exists and is not ours (it has "
        + (f"the owner {holder}" if holder else "no owner")
        + "). Delete or rename it; the operator does not take over what others made."
    )


def _mark(known: Object) -> Any:
    return known["metadata"].get("generation") or known.get("mark")


def _place(owner: Object, resource: Resource, name: str) -> str:
    return f"{owner['uid']}/{resource.kind}/{name}"
