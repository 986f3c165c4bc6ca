"""The loop: events fill the cache and wake the queue, workers reconcile, a slow resync is the net."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tunewright_operator.reconcile import endpoint, job, resources
from tunewright_operator.reconcile.cache import Cache, Key
from tunewright_operator.reconcile.children import Children, NotYetError
from tunewright_operator.reconcile.client import ApiError, Client, UnreachableError
from tunewright_operator.reconcile.clock import Clock, SystemClock
from tunewright_operator.reconcile.events import Events
from tunewright_operator.reconcile.logs import subject
from tunewright_operator.reconcile.metrics import Metrics
from tunewright_operator.reconcile.options import Options
from tunewright_operator.reconcile.pulse import Pulse
from tunewright_operator.reconcile.queue import Queue
from tunewright_operator.reconcile.references import References
from tunewright_operator.reconcile.resources import ENDPOINT, FINETUNEJOB, WATCHED, Resource
from tunewright_operator.reconcile.sweep import Sweep
from tunewright_operator.reconcile.writer import Writer

Object = dict[str, Any]
Reconciler = Callable[["Loop", Key, Object, bool], Awaitable[float | None]]
logger = logging.getLogger(__name__)

_KINDS: dict[str, tuple[Resource, Reconciler]] = {
    "FineTuneJob": (FINETUNEJOB, job.reconcile),
    "ServeEndpoint": (ENDPOINT, endpoint.reconcile),
}
_SOON = 1.0
_PLANS = 64


class Loop:
    """One operator: its cache, its queue, its workers."""

    def __init__(
        self, client: Client, options: Options, clock: Clock | None = None, metrics: Metrics | None = None
    ) -> None:
        self.client, self.options = client, options
        self.clock = clock or SystemClock()
        self.metrics = metrics or Metrics()
        self.settings = options.plan
        self.cache = Cache()
        self.queue: Queue[Key] = Queue(self.clock)
        self.events = Events(client)
        self.children = Children(client, self.cache)
        self.references = References(client, self.clock)
        self.writer = Writer(client, self.cache, self.clock, self.events, self.metrics)
        self.pulse = Pulse(client, self.cache, self.clock, options, self.seen)
        self.sweep = Sweep(client, self.cache, options, self._gone)
        self.ready = False
        self._plans: dict[str, tuple[int, Any]] = {}
        self._deep: set[Key] = set()
        self._followers: dict[Key, set[Key]] = {}
        self._served: set[Resource] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics.watch(self.cache, lambda: len(self.queue), lambda: self.pulse.lag)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fills the cache from the API server, page by page, then lets the workers go."""
        await self._discover()
        for resource in self._watched:
            await self._fill(resource)
        for key in self.cache.ours():
            self.queue.add(key)
        work = [self._work() for _ in range(self.options.workers)]
        watched = self.pulse.run(self._watched), self.sweep.run(lambda: self._watched)
        for one in (*work, self._resync(), self.events.run(), *watched):
            self._tasks.append(asyncio.create_task(one))
        self.ready = True
        logger.info("ready: %d objects, %d of ours", len(self.cache), len(self.cache.ours()))

    async def stop(self) -> None:
        """Ends every task. What was being written may be half done: the next start finishes it."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    def alive(self) -> str | None:
        """None while all is well, else what is not."""
        for task in self._tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                return f"a task of the loop has ended: {error!r}"
        if self.pulse.lag > self.options.stall:
            return f"a watch has shown nothing new for {self.pulse.lag:.0f} s though something changed"
        return None

    # -- events -------------------------------------------------------------------------------

    def heard(self, resource: Resource, body: Object, deleted: bool, listed: bool = False) -> None:
        """An event of a watch. listed: of the list that it begins with, at first or anew."""
        self.pulse.heard(resource)
        if listed:
            self.sweep.want()
        self.seen(resource, body, deleted)

    def seen(self, resource: Resource, body: Object, deleted: bool = False) -> None:
        """Takes in an object, wherever it comes from, and wakes whoever it concerns."""
        key = self.cache.remove(resource, body) if deleted else self.cache.put(resource, body)
        if key is None:
            return
        if deleted and resource.group == resources.OWN_GROUP:
            self._forget(body["metadata"]["uid"])
        self.queue.add(key)
        if resource is FINETUNEJOB:
            self.follow(key)
        elif resource is ENDPOINT and not deleted and (wanted := endpoint.reference(body)):
            self._followers.setdefault(wanted, set()).add(key)

    def _gone(self, resource: Resource, body: Object) -> None:
        self.seen(resource, body, deleted=True)

    def follow(self, key: Key) -> None:
        """Wakes the endpoints that serve what this job publishes."""
        for other in self._followers.get(key, ()):
            self.queue.add(other)

    def planned(self, known: Object, make: Callable[[Object, Loop], Any]) -> Any:
        """The plan of a spec. Only the newest are kept: one takes 50 kB and is made in half a millisecond."""
        meta = known["metadata"]
        kept = self._plans.pop(meta["uid"], None)
        if kept is None or kept[0] != meta.get("generation", 0):
            kept = (meta.get("generation", 0), make(known, self))
        self._plans[meta["uid"]] = kept
        while len(self._plans) > _PLANS:
            del self._plans[next(iter(self._plans))]
        return kept[1]

    def _forget(self, uid: str) -> None:
        self._plans.pop(uid, None)
        self.writer.forget(uid)
        self.children.forget(uid)

    # -- work ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            subject.set(key)
            started = time.perf_counter()
            try:
                await self._once(key)
            except asyncio.CancelledError:
                raise
            except NotYetError as error:
                logger.info("%s", error)
                self.queue.later(key, _SOON)
            except ApiError as error:
                self._failed(
                    key, error.reason or str(error.status), error, quiet=error.conflict or error.missing
                )
            except UnreachableError as error:
                self._failed(key, "Unreachable", error)
            except Exception as error:  # a bug in one resource must not stop the others
                logger.exception("reconciliation failed")
                self._failed(key, type(error).__name__, error, quiet=True)
            finally:
                self.metrics.reconcile.labels(key.kind).observe(time.perf_counter() - started)
                subject.set(None)
                self.queue.done(key)

    async def _once(self, key: Key) -> None:
        resource, reconcile = _KINDS[key.kind]
        known = self.cache.get(resource, key.namespace, key.name)
        if known is None:
            self.queue.drop(key)
            return
        if "deletionTimestamp" in known["metadata"]:
            return  # the garbage collector follows the ownerReferences
        deep = key in self._deep
        self._deep.discard(key)
        again = await reconcile(self, key, known, deep)
        self.queue.forget(key)
        if again is not None:
            self.queue.later(key, again)

    def _failed(self, key: Key, reason: str, error: Exception, quiet: bool = False) -> None:
        delay = self.queue.fail(key)
        self.metrics.errors.labels(key.kind, reason).inc()
        if not quiet:
            logger.warning("again in %.1f s: %s", delay, error)

    # -- the net ------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Which optional kinds the cluster has now; the plan depends on them."""
        self._served = {r for r in WATCHED if not r.optional}
        for resource in (resources.JOBSET, resources.MONITORING, resources.PODMONITOR, resources.POOL):
            if await self.client.served(resource):
                self._served.add(resource)
        settings = replace(
            self.options.plan,
            jobset=resources.JOBSET in self._served,
            pod_monitoring=resources.MONITORING in self._served,
            pod_monitor=resources.PODMONITOR in self._served,
            endpoint_picker=self.options.plan.endpoint_picker if resources.POOL in self._served else None,
        )
        if settings != self.settings:
            self.settings = settings
            self._plans.clear()

    def serves(self, resource: Resource) -> bool:
        """Whether the cluster has this kind."""
        return resource in self._served

    @property
    def _watched(self) -> list[Resource]:
        return [r for r in WATCHED if r in self._served]

    async def _fill(self, resource: Resource) -> set[str]:
        """Lists a kind into the cache. Returns the uids that there are."""
        there: set[str] = set()
        for namespace in self.options.namespaces or (None,):
            async for body in self.client.list(resource, namespace, resource.selector):
                there.add(body["metadata"]["uid"])
                self.seen(resource, body)
        return there

    async def _resync(self) -> None:
        """Looks at everything again, slowly and not all at once: what a watch may have lost, what
        nobody watches, and CRDs that were installed since."""
        while True:
            await asyncio.sleep(self.options.resync * (0.75 + 0.5 * random.random()))
            try:
                await self._discover()
                for resource in self._watched:
                    started = self.cache.snapshot(resource)
                    there = await self._fill(resource)
                    for body in started:
                        if body["metadata"]["uid"] not in there:
                            self.seen(resource, body, deleted=True)
                for key in self.cache.ours():
                    self._deep.add(key)
                    self.queue.later(key, random.random() * min(60.0, self.options.resync / 2))
            except (ApiError, UnreachableError) as error:
                logger.warning("resync failed, the next one comes: %s", error)
