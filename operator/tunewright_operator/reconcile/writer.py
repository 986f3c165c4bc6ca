"""The one write: status, when it differs, at most once in ten seconds for mere progress."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunewright_operator.observe import conditions
from tunewright_operator.reconcile import patches
from tunewright_operator.reconcile.cache import Cache, Key
from tunewright_operator.reconcile.client import Client
from tunewright_operator.reconcile.clock import Clock
from tunewright_operator.reconcile.events import Events
from tunewright_operator.reconcile.metrics import Metrics
from tunewright_operator.reconcile.resources import Resource

Object = dict[str, Any]
logger = logging.getLogger(__name__)
EVERY = 10.0
"""Seconds between two writes of one resource that only tell of progress."""


@dataclass
class Writer:
    """Writes status. `last` is when each resource was written, for the pace of progress."""

    client: Client
    cache: Cache
    clock: Clock
    events: Events
    metrics: Metrics
    last: dict[str, float] = field(default_factory=dict)

    async def write(
        self, resource: Resource, key: Key, known: Object, status: Object, quiet: Callable[[Object], Object]
    ) -> float | None:
        """Writes `status` over the one in `known` when that says something new.

        quiet: the status without what changes by itself as time passes.
        Returns the seconds after which progress may be written, None when there is nothing to wait
        for. Raises ApiError with `conflict` when somebody wrote in between: the key comes again.
        """
        old, meta = known["status"], known["metadata"]
        change = patches.merge_patch(old, status)
        if not change or change.keys() == {"cost"}:
            return None
        if quiet(old) == quiet(status):
            waited = self.clock.monotonic() - self.last.get(meta["uid"], float("-inf"))
            if waited < EVERY:
                return EVERY - waited
        body = {
            "metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]},
            "status": change,
        }
        live = await self.client.patch(resource, key.namespace, key.name, body, "status")
        self.last[meta["uid"]] = self.clock.monotonic()
        self.cache.put(resource, live)
        self._tell(key, meta, old, status)
        return None

    def forget(self, uid: str) -> None:
        self.last.pop(uid, None)

    def _tell(self, key: Key, meta: Object, old: Object, status: Object) -> None:
        before, after = conditions.find(old, "Ready") or {}, conditions.find(status, "Ready") or {}
        moved = old.get("phase") != status["phase"]
        if not moved and before.get("reason") == after.get("reason"):
            return
        reason, message = after.get("reason", ""), status.get("message", "")
        bad = after.get("status") == "False"
        if moved:
            self.metrics.transitions.labels(key.kind, status["phase"]).inc()
        logger.log(
            logging.WARNING if bad else logging.INFO,
            "%s -> %s: %s",
            old.get("phase", "new"),
            status["phase"],
            message or reason,
        )
        self.events.tell(key.kind, meta, reason, message or status["phase"], bad, self.clock.now())
