"""The heartbeat: a watch that is stuck is noticed, one that is merely quiet is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.options import Options
from tunewright_operator.reconcile.pulse import Pulse
from tunewright_operator.reconcile.resources import FINETUNEJOB, Resource

Object = dict[str, Any]


class Server:
    """What an API server has."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    def write(self, name: str, version: int) -> Object:
        meta = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
        self.objects[name] = {"metadata": meta, "spec": {}}
        return self.objects[name]

    async def list(self, *_: object, **__: object) -> AsyncIterator[Object]:
        for body in list(self.objects.values()):
            yield body

    async def get(self, _: Resource, __: str, name: str) -> Object | None:
        return self.objects.get(name)


class Hand:
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


class Case:
    def __init__(self) -> None:
        self.server, self.cache, self.clock = Server(), Cache(), Hand()
        self.woken: list[str] = []
        self.pulse = Pulse(self.server, self.cache, self.clock, Options(), self.seen)  # type: ignore[arg-type]

    def seen(self, resource: Resource, body: Object) -> None:
        if self.cache.put(resource, body):
            self.woken.append(body["metadata"]["name"])

    def check(self, at: float) -> float:
        self.clock.seconds = at
        asyncio.run(self.pulse.check(FINETUNEJOB))
        return self.pulse.lag


def test_a_quiet_watch_of_an_idle_cluster_is_well() -> None:
    case = Case()
    case.seen(FINETUNEJOB, case.server.write("a", 5))
    assert [case.check(t) for t in (0, 100, 200, 9000)] == [0, 0, 0, 0]


def test_a_change_that_is_only_on_its_way_is_given_a_moment() -> None:
    case = Case()
    body = case.server.write("a", 5)
    assert case.check(0) == 0
    case.seen(FINETUNEJOB, body)
    assert case.check(100) == 0


def test_a_change_that_does_not_come_is_taken_in_by_hand_and_the_watch_owes_a_sign_of_life() -> None:
    case = Case()
    case.server.write("a", 5)
    case.check(0)
    case.check(100)
    assert case.woken == ["a"]
    case.clock.seconds = 250
    assert case.pulse.lag == 150
    case.check(260)
    assert case.pulse.lag == 160


def test_any_event_of_the_kind_is_a_sign_of_life() -> None:
    case = Case()
    case.server.write("a", 5)
    case.check(0)
    case.check(100)
    case.pulse.heard(FINETUNEJOB)
    case.clock.seconds = 1000
    assert case.pulse.lag == 0


def test_an_object_that_changes_all_the_time_is_not_late_while_its_older_changes_arrive() -> None:
    case = Case()
    for moment in range(0, 1000, 100):
        version = moment + 10
        case.check(moment)
        case.seen(FINETUNEJOB, case.server.write("a", version))
        case.server.write("a", version + 5)
        assert case.pulse.lag == 0
