"""The slim cache: what it keeps, and which events bring news."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunewright_operator.reconcile import cache as caches
from tunewright_operator.reconcile.cache import Cache, Key
from tunewright_operator.reconcile.resources import CONFIGMAP, FINETUNEJOB, JOB, POD, UID_LABEL

KEY = Key("FineTuneJob", "team", "bot")


def job(version: int = 1, uid: str = "u1", **spec: Any) -> dict[str, Any]:
    meta = {"name": "bot", "namespace": "team", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return {"metadata": meta, "spec": spec, "status": {}}


def child(version: int = 1, uid: str = "c1", owner: str = "u1", **more: Any) -> dict[str, Any]:
    labels = {UID_LABEL: owner}
    meta = {
        "name": "bot-train",
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"metadata": meta, "spec": {}, "status": {}, **more}


def test_the_first_sight_of_an_object_is_news_and_the_echo_of_our_own_write_is_none() -> None:
    cache = Cache()
    assert cache.put(FINETUNEJOB, job(5)) == KEY
    assert cache.put(FINETUNEJOB, job(5)) is None
    assert cache.put(FINETUNEJOB, job(6)) == KEY


def test_a_slow_stream_cannot_undo_what_a_response_already_told() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job(9, a=2))
    assert cache.put(FINETUNEJOB, job(8, a=1)) is None
    assert cache.get(FINETUNEJOB, "team", "bot")["spec"] == {"a": 2}


def test_a_child_wakes_the_resource_whose_uid_it_carries() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    assert cache.put(JOB, child()) == KEY
    assert cache.put(POD, child(uid="p1")) == KEY
    assert [o["kind"] for o in cache.children("u1")] == ["Job", "Pod"]
    assert cache.remove(JOB, child(2)) == KEY
    assert [o["kind"] for o in cache.children("u1")] == ["Pod"]


def test_a_child_that_comes_before_its_owner_is_found_once_the_owner_is_there() -> None:
    cache = Cache()
    assert cache.put(JOB, child()) is None
    assert cache.put(FINETUNEJOB, job()) == KEY
    assert len(cache.children("u1")) == 1


def test_a_child_of_somebody_else_concerns_nobody() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    foreign = child()
    del foreign["metadata"]["labels"]
    assert cache.put(JOB, foreign) is None


def test_a_deleted_object_does_not_rise_again_from_a_late_event() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    cache.put(JOB, child(3))
    cache.remove(JOB, child(4))
    assert cache.put(JOB, child(3)) is None
    assert cache.get(JOB, "team", "bot-train") is None


def test_a_new_object_of_an_old_name_replaces_it_and_belongs_to_its_own_owner() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    cache.put(JOB, child(3))
    cache.put(FINETUNEJOB, job(10, uid="u2"))
    assert cache.put(JOB, child(11, uid="c2", owner="u2")) == KEY
    assert cache.children("u1") == []
    assert len(cache.children("u2")) == 1


def test_the_deletion_of_a_predecessor_leaves_the_successor_of_the_same_name() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job(10, uid="u2"))
    cache.put(JOB, child(11, uid="c2", owner="u2"))
    assert cache.remove(JOB, child(4, uid="c1")) is None
    assert cache.get(JOB, "team", "bot-train") is not None


def test_a_pod_that_is_gone_is_remembered_until_its_end_was_accounted_for() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    pod = child(uid="p1", status={"phase": "Running"})
    cache.put(POD, pod)
    last = child(5, uid="p1", status={"phase": "Failed"})
    cache.remove(POD, last)
    assert [p["status"]["phase"] for p in cache.graves("u1")] == ["Failed"]
    cache.forget_graves("u1", {"p1"})
    assert cache.graves("u1") == []


@pytest.mark.parametrize(
    ("resource", "body", "kept"),
    [
        (POD, {"spec": {"containers": [{"name": "x", "env": [{"name": "SECRET", "value": "v"}]}]}}, "SECRET"),
        (POD, {"status": {"hostIP": "10.1.2.3", "phase": "Running"}}, "10.1.2.3"),
        (CONFIGMAP, {"data": {"train.json": "{}"}}, "train.json"),
    ],
)
def test_what_no_decision_needs_is_not_kept(resource: Any, body: dict[str, Any], kept: str) -> None:
    assert kept not in json.dumps(caches.slim(resource, child(**body)))


def test_the_chips_of_a_pod_are_the_sum_of_its_requests() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"google.com/tpu": "4", "cpu": "1"}}},
            {"resources": {"requests": {"cpu": "1"}}},
        ]
    }
    assert caches.slim(POD, child(spec=spec))["spec"]["chips"] == 4


def test_a_typical_pod_becomes_less_than_a_kilobyte() -> None:
    status = {
        "phase": "Running",
        "conditions": [
            {"type": t, "status": "True", "lastTransitionTime": "2026-12-01T08:00:00Z"}
            for t in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {"name": "train", "ready": True, "restartCount": 0, "image": "i" * 100, "imageID": "d" * 100,
             "state": {"running": {"startedAt": "2026-12-01T08:00:00Z"}}}
        ],
    }  # fmt: skip
    spec = {
        "containers": [{"name": "train", "env": [{"name": f"V{i}", "value": "x" * 50} for i in range(50)]}]
    }
    assert len(json.dumps(caches.slim(POD, child(spec=spec, status=status)))) < 1000


def test_a_pod_that_a_resync_misses_is_remembered_as_it_was_last_seen() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job())
    spec = {"containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}]}
    cache.put(POD, child(uid="p1", spec=spec, status={"phase": "Running"}))
    (known,) = cache.snapshot(POD)
    cache.remove(POD, known)
    (grave,) = cache.graves("u1")
    assert (grave["spec"]["chips"], grave["status"]["phase"]) == (4, "Running")


def test_our_own_resources_come_back_whole() -> None:
    cache = Cache()
    cache.put(FINETUNEJOB, job(1, a={"b": [1, 2.5, None, "c"]}))
    found = cache.get(FINETUNEJOB, "team", "bot")
    assert (found["spec"], found["status"]) == ({"a": {"b": [1, 2.5, None, "c"]}}, {})
    assert list(cache.all(FINETUNEJOB)) == [found]
