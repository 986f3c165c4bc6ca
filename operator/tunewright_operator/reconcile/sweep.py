"""What went while nobody listened.

A watch that has lost its place (410 Gone, an API server that came back) begins with a list: it shows
what is there and says nothing of what was deleted in between. A Job or a pod that the cache still
holds would be waited for until the resync. So a list is followed by a comparison, names and uids only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.client import ApiError, Client, UnreachableError
from tunewright_operator.reconcile.options import Options
from tunewright_operator.reconcile.resources import Resource

Object = dict[str, Any]
logger = logging.getLogger(__name__)
_SETTLE, _AGAIN = 1.0, 5.0
"""Seconds for the other lists to begin, and before another try when the API server does not answer."""


class Sweep:
    """Takes out of the cache what the cluster no longer has.

    gone: told of every object that went, as it was last known.
    """

    def __init__(
        self, client: Client, cache: Cache, options: Options, gone: Callable[[Resource, Object], None]
    ) -> None:
        self.client, self.cache, self.options, self.gone = client, cache, options, gone
        self._wanted = asyncio.Event()

    def want(self) -> None:
        """A watch began with a list. What cut this one may have cut the others, and a list of nothing
        makes no event: every kind is compared."""
        self._wanted.set()

    async def run(self, served: Callable[[], Iterable[Resource]]) -> None:
        """Compares when it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(_SETTLE)
            self._wanted.clear()
            try:
                for resource in served():
                    await self.compare(resource)
            except (ApiError, UnreachableError) as error:
                logger.warning("what was deleted is not known yet: %s", error)
                self._wanted.set()
                await asyncio.sleep(_AGAIN)

    async def compare(self, resource: Resource) -> None:
        """Lists one kind; what was known before and is not in the list is gone."""
        known = self.cache.snapshot(resource)
        if not known:
            return
        there: set[str] = set()
        for namespace in self.options.namespaces or (None,):
            async for body in self.client.list(resource, namespace, resource.selector, metadata=True):
                there.add(body["metadata"]["uid"])
        for body in known:
            if body["metadata"]["uid"] not in there:
                self.gone(resource, body)
