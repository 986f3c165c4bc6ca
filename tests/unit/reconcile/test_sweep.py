"""What was deleted while no watch looked: found by comparing, and counted as it last was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.client import UnreachableError
from tunewright_operator.reconcile.options import Options
from tunewright_operator.reconcile.resources import FINETUNEJOB, JOB, POD, UID_LABEL, Resource
from tunewright_operator.reconcile.sweep import Sweep

Object = dict[str, Any]


def body(name: str, version: int = 1, owner: str | None = "u1", chips: int = 0) -> Object:
    meta: Object = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    if owner:
        meta["labels"] = {UID_LABEL: owner}
    container = {"name": "c", "resources": {"requests": {"google.com/tpu": str(chips)}}}
    return {"metadata": meta, "spec": {"containers": [container]}, "status": {}}


class Server:
    """What the cluster has; `broken` answers are missing first."""

    def __init__(self, *there: str, broken: int = 0) -> None:
        self.there, self.broken, self.asked = set(there), broken, 0

    async def list(self, resource: Resource, *_: object, **__: object) -> AsyncIterator[Object]:
        self.asked += 1
        if self.broken:
            self.broken -= 1
            raise UnreachableError("no answer")
        for name in sorted(self.there):
            yield body(name)


def sweep(server: Server, cache: Cache, gone: list[str]) -> Sweep:
    def told(resource: Resource, one: Object) -> None:
        gone.append(one["metadata"]["name"])
        cache.remove(resource, one)

    return Sweep(server, cache, Options(), told)  # type: ignore[arg-type]


def filled() -> Cache:
    cache = Cache()
    cache.put(FINETUNEJOB, body("u1", owner=None))
    cache.put(JOB, body("bot-train"))
    cache.put(POD, body("pod", chips=4))
    return cache


def test_what_is_not_there_any_more_leaves_the_cache_and_what_is_there_stays() -> None:
    cache, gone = filled(), list[str]()
    asyncio.run(sweep(Server("pod"), cache, gone).compare(JOB))
    assert gone == ["bot-train"]
    asyncio.run(sweep(Server("pod"), cache, gone).compare(POD))
    assert gone == ["bot-train"]
    assert [o["metadata"]["name"] for o in cache.children("u1")] == ["pod"]


def test_a_pod_that_went_unseen_is_counted_as_it_last_was() -> None:
    """It changed while the list was on its way: what was compared is older than what is known."""
    cache = filled()
    before = cache.snapshot(POD)[0]
    cache.put(POD, body("pod", version=2, chips=4))
    cache.remove(POD, before)
    (grave,) = cache.graves("u1")
    assert (grave["metadata"]["resourceVersion"], grave["spec"]["chips"]) == ("2", 4)


def test_nothing_is_asked_about_a_kind_of_which_nothing_is_known() -> None:
    server = Server()
    asyncio.run(sweep(server, Cache(), []).compare(POD))
    assert server.asked == 0


def test_a_comparison_that_failed_is_made_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("tunewright_operator.reconcile.sweep._SETTLE", 0.0)
    monkeypatch.setattr("tunewright_operator.reconcile.sweep._AGAIN", 0.0)
    cache, gone = filled(), list[str]()

    async def until_found() -> None:
        running = sweep(Server(broken=2), cache, gone)
        running.want()
        task = asyncio.create_task(running.run(lambda: [JOB]))
        while not gone:
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(asyncio.wait_for(until_found(), 10))
    assert gone == ["bot-train"]
