# ruff: noqa: F811  (fixtures are imported by name)
"""Bad days, one at a time: watches cut, history gone, status writes refused or their answers lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from . import faulty, pods
from .api import Cluster, condition
from .faulty import Asked, Faulty
from .operating import Operator, Space, operator  # noqa: F401


@pytest.fixture(scope="module")
def wire(cluster: Cluster) -> Iterator[Faulty]:
    """What stands between the operator of this module and the API server."""
    with Faulty(cluster) as between:
        yield between


@pytest.fixture(scope="module")
def behind(wire: Faulty, cluster: Cluster, operator: Operator) -> Iterator[Operator]:
    """An operator that reaches the API server through `wire` only; nobody else does its work."""
    operator.kill()
    try:
        with Operator(cluster, name="behind", url=wire.url) as running:
            yield running
    finally:
        operator.start()


@pytest.fixture
def space(wire: Faulty, behind: Operator, cluster: Cluster, namespace: str) -> Iterator[Space]:
    yield Space(cluster, namespace)
    wire.fault(None)
    assert behind.process.alive


def status_write(asked: Asked) -> bool:
    return asked.method == "PATCH" and asked.path.endswith("/finetunejobs/bot/status")


class First:
    """The first `count` requests of a kind meet `act`."""

    def __init__(self, act: str | int, count: int, watch: bool = False) -> None:
        self.act, self.left, self.watch = act, count, watch
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> str | int | None:
        wanted = asked.watch if self.watch else status_write(asked)
        with self._lock:
            if not wanted or self.left == 0:
                return None
            self.left -= 1
            return self.act


@pytest.mark.parametrize("act", [409, 500, faulty.CLOSED, faulty.LOST])
def test_a_status_write_that_fails_is_made_again(
    act: str | int, space: Space, wire: Faulty, cluster: Cluster
) -> None:
    space.job()
    first = space.pod("train")
    space.phase("Provisioning")
    wire.fault(First(act, 2))
    pods.run(cluster, space.namespace, first)
    status = space.phase("Training")
    assert wire.met(act) >= 1
    pods.finish(cluster, space.namespace, first, 1)
    second = space.pod("train", but={first})
    pods.run(cluster, space.namespace, second)
    cluster.wait_for(lambda: space.status()["attempts"] == 2, "the second attempt", 30)
    status = space.phase("Training")
    assert (status["attempts"], status["preemptions"]) == (2, 0)


def test_a_failure_is_counted_once_though_the_answer_to_its_write_was_lost(
    space: Space, wire: Faulty, cluster: Cluster
) -> None:
    space.job(limits={"retries": 1})
    first = space.pod("train")
    pods.finish(cluster, space.namespace, first, 1)
    second = space.pod("train", but={first})
    pods.run(cluster, space.namespace, second)
    cluster.wait_for(lambda: space.status()["attempts"] == 2, "the second attempt", 30)
    space.phase("Training")
    time.sleep(1)
    wire.fault(First(faulty.LOST, 1))
    cluster.request("DELETE", f"/api/v1/namespaces/{space.namespace}/pods/{first}?gracePeriodSeconds=0")
    cluster.wait_for(lambda: space.status()["ledger"].get("failures") == {"train": 1}, "the account", 30)
    assert wire.met(faulty.LOST) == 1
    time.sleep(3)
    status = space.status()
    assert (status["phase"], status["attempts"], status["ledger"]["failures"]) == (
        "Training",
        2,
        {"train": 1},
    )


def test_a_resumed_run_is_not_taken_for_a_remnant_when_its_status_could_not_be_written(
    space: Space, wire: Faulty, cluster: Cluster
) -> None:
    """The status still says Failed while the new Job is there: whoever looks then must leave it alone."""
    space.job(limits={"retries": 0})
    first = space.pod("train")
    pods.finish(cluster, space.namespace, first, 1)
    space.phase("Failed", reason="RetriesExhausted")
    cluster.wait_for(lambda: not space.names("jobs"), "the end of the Job", 30)
    wire.fault(First(409, 3))
    space.change({"limits": {"retries": 1}})
    second = space.pod("train", but={first})
    made = cluster.request("GET", space.path("jobs", "bot-train", "/apis/batch/v1"))["metadata"]["uid"]
    pods.run(cluster, space.namespace, second)
    status = space.phase("Training")
    assert wire.met(409) == 3
    assert (status["attempts"], status["preemptions"]) == (2, 0)
    assert (
        cluster.request("GET", space.path("jobs", "bot-train", "/apis/batch/v1"))["metadata"]["uid"] == made
    )


def test_watches_that_are_cut_again_and_again_lose_nothing(
    space: Space, wire: Faulty, cluster: Cluster
) -> None:
    space.job()
    first = space.pod("train")
    assert wire.cut() > 0
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    wire.cut()
    pods.finish(cluster, space.namespace, first)
    space.phase("Merging")
    wire.cut()
    pods.finish(cluster, space.namespace, space.pod("merge"))
    status = space.phase("Succeeded")
    assert (status["attempts"], status["preemptions"]) == (1, 0)


def test_what_was_deleted_while_the_history_was_lost_is_made_again(
    space: Space, wire: Faulty, cluster: Cluster
) -> None:
    """410 Gone, as API servers say it: in the first line of a watch."""
    space.job()
    first = space.pod("train")
    path = space.path("jobs", "bot-train", "/apis/batch/v1")
    before = cluster.request("GET", path)["metadata"]["uid"]
    wire.fault(lambda asked: faulty.CLOSED if asked.watch else None)
    open_before = wire.cut()
    cluster.request("DELETE", path, {"propagationPolicy": "Background"})
    cluster.wait_for(lambda: not space.names("pods"), "the end of the pod", 30)
    assert not cluster.exists(path), "the operator saw it, so nothing was lost"
    wire.fault(First(faulty.EXPIRED, open_before, watch=True))
    pods.run(cluster, space.namespace, space.pod("train", but={first}))
    space.phase("Training")
    assert wire.met(faulty.EXPIRED) >= 1
    assert cluster.request("GET", path)["metadata"]["uid"] != before


def test_no_stage_starts_before_the_status_says_how_the_last_one_ended(
    space: Space, wire: Faulty, cluster: Cluster
) -> None:
    """The record of the next stage replaces the last one's: an operator that died in between would
    have lost the digests."""
    space.job()
    train = space.pod("train")
    pods.run(cluster, space.namespace, train)
    space.phase("Training")
    wire.fault(lambda asked: 500 if status_write(asked) else None)
    space.progress(step=100, totalSteps=100, done=True, artifacts={"adapter": "a" * 64, "dataset": "b" * 64})
    pods.finish(cluster, space.namespace, train)
    path = space.path("jobs", "bot-train", "/apis/batch/v1")
    cluster.wait_for(
        lambda: bool(condition(cluster.request("GET", path), "Complete")), "the end of the Job", 30
    )
    cluster.wait_for(lambda: wire.met(500) >= 3, "refused writes", 30)
    assert space.names("jobs") == ["bot-train"]
    wire.fault(None)
    merge = space.pod("merge")
    space.progress(stage="merge", step=1, totalSteps=9, artifacts={})
    pods.finish(cluster, space.namespace, merge)
    artifacts = space.phase("Succeeded")["artifacts"]
    assert (artifacts["adapter"]["digest"], artifacts["datasetDigest"]) == ("a" * 64, "b" * 64)
