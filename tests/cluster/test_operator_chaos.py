# ruff: noqa: F811  (fixtures are imported by name)
"""Whatever dies and whenever: the same end, nothing made twice, nothing forgotten.

8 kills over 4 jobs, and 100 over 20.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from . import nodes, pods, simulate
from .api import Cluster, Object
from .control import ControlPlane
from .operating import CHILDREN, Operator, Space, operator, ready, space  # noqa: F401

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def kubelets(plane: ControlPlane) -> Iterator[None]:
    """Nodes whose pods run and end by themselves."""
    simulate.kubelets(plane)
    pool = nodes.fake_tpu_nodes(plane, 3, labels={simulate.LABEL: "true"})
    yield
    pool.delete(plane)
    plane.end("kwok")


TOLERATE = [{"key": "google.com/tpu", "operator": "Exists"}]


def run_itself(space: Space, name: str, seconds: float) -> Object:
    """A job whose pods run so long and end well."""
    template = {
        "annotations": {simulate.FINISH_AFTER: f"{seconds}s"},
        "tolerations": TOLERATE,
        "nodeSelector": {simulate.LABEL: "true"},
    }
    return space.job(name, output={"uri": f"gs://acme/models/{name}"}, podTemplate=template)


def settled(space: Space) -> bool:
    found = space.cluster.items(space.path("finetunejobs"))
    return all(one.get("status", {}).get("phase") == "Succeeded" for one in found)


def check(space: Space, names: list[str]) -> None:
    """Every job ended well, once: one Job a stage, one pod a Job, one attempt, no preemption."""
    for name in names:
        status = space.status(name=name)
        assert (status["phase"], status["attempts"], status["preemptions"]) == ("Succeeded", 1, 0), status
        assert ready(status)["status"] == "True"
        assert {c["type"] for c in status["conditions"]} >= {"Trained", "Merged"}
        base = f"gs://acme/models/{name}"
        assert status["artifacts"] == {
            "adapter": {"uri": f"{base}/checkpoints"},
            "merged": {"uri": f"{base}/merged"},
        }
        assert "startTime" in status
        assert "completionTime" in status
    wanted = Counter(f"{name}-{stage}" for name in names for stage in ("train", "merge"))
    assert Counter(space.names("jobs")) == wanted
    found = space.cluster.items(f"/api/v1/namespaces/{space.namespace}/pods")
    assert Counter(p["metadata"]["labels"]["batch.kubernetes.io/job-name"] for p in found) == wanted


@pytest.mark.parametrize(("kills", "jobs"), [(8, 4), (100, 20)])
def test_an_operator_that_is_killed_again_and_again_ends_like_one_that_is_not(
    kills: int, jobs: int, kubelets: None, plane: ControlPlane, operator: Operator, namespace: str
) -> None:
    operator.kill()
    draw = random.Random(20261201)
    names = [f"job-{i}" for i in range(jobs)]
    space = Space(plane, namespace)
    try:
        with Operator(plane, "--namespaces", namespace) as victim:
            waiting = list(names)
            for kill in range(kills):
                # New ones until near the end, so that every kill finds jobs on their way.
                while len(names) - len(waiting) < min(jobs, 2 + kill * jobs // kills):
                    run_itself(space, waiting.pop(0), draw.uniform(1.0, 4.0))
                time.sleep(draw.uniform(0.0, 1.2))
                victim.kill()
                # Half of the kills hit a start-up: nothing says that the first look is a quiet moment.
                victim.start(wait=draw.random() < 0.5)
                if draw.random() < 0.3:
                    time.sleep(draw.uniform(0.3, 1.0))
            for name in waiting:
                run_itself(space, name, 1.0)
            plane.wait_for(lambda: settled(space), "the end of every job", 240)
        check(space, names)
    finally:
        operator.start()


def test_two_operators_at_once_make_nothing_twice(
    kubelets: None, plane: ControlPlane, operator: Operator, namespace: str
) -> None:
    names = [f"job-{i}" for i in range(4)]
    space = Space(plane, namespace)
    with Operator(plane, "--namespaces", namespace, name="second"):
        for name in names:
            run_itself(space, name, 1.5)
        plane.wait_for(lambda: settled(space), "the end of every job", 120)
    check(space, names)


def test_two_operators_at_once_count_every_failure_once_and_leave_each_others_jobs_alone(
    operator: Operator, space: Space, cluster: Cluster
) -> None:
    """As during an upgrade: neither is in step with what the other wrote a moment ago."""
    with Operator(cluster, "--namespaces", space.namespace, name="second"):
        space.job(limits={"retries": 1})
        known: set[str] = set()
        for retries in (2, 3, 4):
            for _ in range(2 if retries == 2 else 1):
                pod = space.pod("train", but=known)
                known.add(pod)
                pods.finish(cluster, space.namespace, pod, 1)
            space.phase("Failed", reason="RetriesExhausted")
            space.change({"limits": {"retries": retries}})
        last = space.pod("train", but=known)
        pods.run(cluster, space.namespace, last)
        status = space.phase("Training")
        time.sleep(2)
        status = space.status()
        assert (status["phase"], status["attempts"], status["preemptions"]) == ("Training", 5, 0)
        assert [p["metadata"]["name"] for p in space.pods("train") if p["status"]["phase"] == "Running"] == [
            last
        ]


def test_an_api_server_that_dies_is_waited_for(
    kubelets: None, plane: ControlPlane, operator: Operator, namespace: str
) -> None:
    names = [f"job-{i}" for i in range(3)]
    space = Space(plane, namespace)
    for name in names:
        run_itself(space, name, 3.0)
    space.pod("train")
    plane.restart_apiserver()
    assert operator.process.alive
    plane.wait_for(lambda: settled(space), "the end of every job", 180)
    check(space, names)
    assert operator.alive()


def test_a_status_that_somebody_else_changes_is_put_right(space: Space, cluster: Cluster) -> None:
    space.job()
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    for _ in range(5):
        cluster.patch(space.path("finetunejobs", "bot") + "/status", {"status": {"phase": "Failed"}})
        cluster.patch(space.path("finetunejobs", "bot") + "/status", {"status": {"phase": "Merging"}})
    space.phase("Training")


def test_changes_that_nobody_watched_are_seen_after_a_restart(
    plane: ControlPlane, operator: Operator, space: Space
) -> None:
    """The pod fails, the Job is deleted and a preempted pod comes: all while no operator looks."""
    space.job()
    first = space.pod("train")
    pods.run(plane, space.namespace, first)
    space.phase("Training")
    operator.kill()
    try:
        pods.finish(plane, space.namespace, first, 1)
        second = space.pod("train", but={first})
        pods.run(plane, space.namespace, second)
        pods.finish(plane, space.namespace, second, 75)
        third = space.pod("train", but={first, second})
        pods.run(plane, space.namespace, third)
    finally:
        operator.start()
    plane.wait_for(lambda: space.status()["attempts"] == 2, "the second attempt", 30)
    status = space.phase("Training")
    assert (status["attempts"], status["preemptions"]) == (2, 1)


def test_sigterm_ends_the_operator_cleanly(cluster: Cluster, operator: Operator, namespace: str) -> None:
    with Operator(cluster, "--namespaces", namespace) as second:
        assert second.stop() == 0
        assert not [line for line in second.lines() if line["level"] == "error"]


def test_logs_are_json_with_the_name_of_the_resource(operator: Operator, space: Space) -> None:
    space.job(suspend=True)
    space.phase("Suspended")
    mine = [line for line in operator.lines() if line.get("namespace") == space.namespace]
    assert mine
    assert all((line["kind"], line["name"]) == ("FineTuneJob", "bot") for line in mine)
    raw = [line for line in operator.process.log.read_text().splitlines() if line]
    assert all(line.startswith("{") for line in raw)


def test_metrics_tell_of_jobs_chips_dollars_and_requests(
    operator: Operator, space: Space, cluster: Cluster
) -> None:
    slice_ = {"accelerator": {"type": "v5p", "topology": "2x2x1"}, "training": {"globalBatchSize": 16}}
    space.job(**slice_)
    pods.run(cluster, space.namespace, space.pod("train"))
    space.phase("Training")
    text = operator.get("/metrics") or ""
    assert f'tunewright_jobs{{phase="Training",resource_namespace="{space.namespace}"}} 1.0' in text
    assert f'tunewright_chips{{resource_namespace="{space.namespace}",type="v5p"}} 4.0' in text
    assert f'tunewright_spent_usd{{resource_namespace="{space.namespace}"}}' in text
    for name in (
        "tunewright_reconcile_seconds_bucket",
        "tunewright_reconcile_errors_total",
        "tunewright_api_requests_total",
        "tunewright_queue_depth",
        "tunewright_watch_lag_seconds",
        "tunewright_transitions_total",
    ):
        assert name in text


def test_no_finalizer_and_no_annotation_of_the_framework_is_left_on_anything(
    operator: Operator, space: Space, cluster: Cluster
) -> None:
    space.job()
    space.endpoint()
    space.pod("train")
    everything = [space.get(), space.get("ServeEndpoint")]
    for kind in CHILDREN:
        if kind != "pods":
            from .operating import _GROUPS

            everything += cluster.items(
                space.path(kind, group=_GROUPS[kind]), labelSelector="tunewright.dev/uid"
            )
    for one in everything:
        meta = one["metadata"]
        assert not meta.get("finalizers"), meta
        assert not any("kopf" in key for key in (*meta.get("annotations", {}), *meta.get("labels", {})))


def test_liveness_fails_once_a_watch_has_been_silent_for_too_long(
    operator: Operator, cluster: Cluster, namespace: str
) -> None:
    """With an allowance below zero even a healthy watch is too late: the probe must say so."""
    with Operator(cluster, "--namespaces", namespace, "--stall=-1") as impatient:
        assert impatient.get("/readyz") == "ready"
        assert not impatient.alive()
    with Operator(cluster, "--namespaces", namespace) as patient:
        assert patient.alive()
