"""Events: a line in `kubectl describe` for each transition. Told, never relied on."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import datetime
from typing import Any

from tunewright_operator.observe import times
from tunewright_operator.reconcile.client import ApiError, Client, UnreachableError
from tunewright_operator.reconcile.resources import EVENT, OWN_GROUP

Object = dict[str, Any]
logger = logging.getLogger(__name__)
_WAITING = 1000


class Events:
    """Posts events behind the workers' backs; when the server is slow the newest are dropped."""

    def __init__(self, client: Client, instance: str = "tunewright") -> None:
        self.client, self.instance = client, instance
        self._queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue(_WAITING)

    def tell(self, kind: str, meta: Object, reason: str, message: str, bad: bool, now: datetime) -> None:
        """Queues an event about a resource. The same transition has the same name, also after a crash."""
        mark = hashlib.sha256(f"{meta['uid']} {reason} {message}".encode()).hexdigest()[:12]
        moment = times.show(now)
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{mark}", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": f"{OWN_GROUP}/v1alpha1",
                "kind": kind,
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if bad else "Normal",
            "source": {"component": "tunewright"},
            "reportingComponent": "tunewright.dev/operator",
            "reportingInstance": self.instance,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        try:
            self._queue.put_nowait((meta["namespace"], body))
        except asyncio.QueueFull:
            logger.warning("an event was dropped: the API server is too slow for them")

    async def run(self) -> None:
        """Posts until cancelled."""
        while True:
            namespace, body = await self._queue.get()
            try:
                await self.client.create(EVENT, namespace, body)
            except ApiError as error:
                if not error.conflict:
                    logger.warning("an event was refused: %s", error)
            except UnreachableError as error:
                logger.warning("an event was lost: %s", error)
