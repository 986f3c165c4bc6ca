"""The heartbeat: does what changes in the cluster still reach the cache?

Liveness of a process says nothing about its watches, and an idle cluster shows nothing either way.
So every now and then one kind is listed, names and versions only. What is newer there than in the
cache at two checks in a row is overdue: it is taken in by hand, and the watch owes a sign of life
from then on. Any event of the kind is one; a watch that stays silent fails liveness.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from tunewright_operator.reconcile.cache import Cache, version
from tunewright_operator.reconcile.client import ApiError, Client, UnreachableError
from tunewright_operator.reconcile.clock import Clock
from tunewright_operator.reconcile.options import Options
from tunewright_operator.reconcile.resources import Resource

Object = dict[str, Any]
logger = logging.getLogger(__name__)


class Pulse:
    """Compares one kind after the other with the API server."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        clock: Clock,
        options: Options,
        seen: Callable[[Resource, Object], None],
    ) -> None:
        self.client, self.cache, self.clock, self.options, self.seen = client, cache, clock, options, seen
        self._late: dict[Resource, dict[str, int]] = {}
        self._owed: dict[Resource, float] = {}

    @property
    def lag(self) -> float:
        """Seconds for which a watch has owed a sign of life; 0 while none does."""
        return self.clock.monotonic() - min(self._owed.values()) if self._owed else 0.0

    def heard(self, resource: Resource) -> None:
        """A watch of this kind has shown something."""
        self._owed.pop(resource, None)

    async def run(self, served: Iterable[Resource]) -> None:
        """Checks until cancelled."""
        while True:
            for resource in sorted(served, key=lambda r: r.kind):
                await asyncio.sleep(self.options.pulse * (0.75 + 0.5 * random.random()))
                try:
                    await self.check(resource)
                except (ApiError, UnreachableError) as error:
                    # An API server that does not answer is not cured by a restart of ours.
                    logger.warning("no pulse of %s: %s", resource.plural, error)

    async def check(self, resource: Resource) -> None:
        """Compares one kind with the API server."""
        before = self._late.pop(resource, {})
        late: dict[str, int] = {}
        overdue: list[Object] = []
        for namespace in self.options.namespaces or (None,):
            async for body in self.client.list(resource, namespace, resource.selector, metadata=True):
                meta = body["metadata"]
                known = self.cache.get(resource, meta.get("namespace", ""), meta["name"])
                have = 0 if known is None else version(known)
                if have >= version(body):
                    continue
                late[meta["uid"]] = version(body)
                # An object that changes all the time is behind at every check; one that has not
                # even reached what it was at the last check is not coming.
                if meta["uid"] in before and have < before[meta["uid"]]:
                    overdue.append(meta)
        self._late[resource] = late
        if not overdue:
            return
        logger.warning("the watch of %s has not shown %d changes", resource.plural, len(overdue))
        self._owed.setdefault(resource, self.clock.monotonic())
        for meta in overdue:
            live = await self.client.get(resource, meta.get("namespace", ""), meta["name"])
            if live is not None:
                self.seen(resource, live)
