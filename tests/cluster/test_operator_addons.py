"""Slices of several machines by the real JobSet, queues by the real Kueue; kubelets are simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from . import addons, nodes, pods, simulate
from .api import Object
from .build import UnavailableError
from .control import ControlPlane
from .nodes import Pool
from .operating import Operator, Space, install, ready

pytestmark = pytest.mark.chaos

PLACE = {
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
    "nodeSelector": {simulate.LABEL: "true"},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of our own: what is installed here must not change what others see."""
    try:
        opened = ControlPlane(scheduler=True)
    except UnavailableError as lack:
        pytest.skip(str(lack))
    with opened:
        addons.jobset(opened)
        addons.kueue(opened)
        simulate.kubelets(opened)
        install(opened)
        yield opened


@pytest.fixture(scope="module")
def pool(plane: ControlPlane) -> Pool:
    """Two machines that make one v5p 2x2x2 slice."""
    return nodes.fake_tpu_nodes(plane, 2, topology="2x2x2", labels={simulate.LABEL: "true"})


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Operator]:
    with Operator(plane) as running:
        yield running


@pytest.fixture
def space(plane: ControlPlane, operator: Operator, pool: Pool) -> Iterator[Space]:
    name = plane.create_namespace()
    here = Space(plane, name)
    yield here
    # The next test needs the machines: nothing of this one may still hold them.
    for one in plane.items(here.path("finetunejobs")):
        plane.request("DELETE", here.path("finetunejobs", one["metadata"]["name"]))
    plane.wait_for(lambda: not plane.items(f"/api/v1/namespaces/{name}/pods"), "the end of the pods", 90)
    plane.delete_namespace(name)


def sliced(
    space: Space, name: str = "bot", seconds: float | None = 2, code: int = 0, **spec: object
) -> Object:
    """A job on two machines whose pods run so long and end with this code."""
    notes = {} if seconds is None else {simulate.FINISH_AFTER: f"{seconds}s", simulate.EXIT_CODE: str(code)}
    return space.job(
        name,
        accelerator={"type": "v5p", "topology": "2x2x2"},
        training={"globalBatchSize": 8, "steps": 10},
        output={"uri": f"gs://acme/models/{name}", "merge": False},
        podTemplate={"annotations": notes, **PLACE},
        **spec,
    )


def jobsets(space: Space) -> list[Object]:
    return space.cluster.items(space.path("jobsets", group="/apis/jobset.x-k8s.io/v1alpha2"))


def test_a_slice_of_two_machines_is_one_jobset_and_one_attempt(space: Space) -> None:
    sliced(space)
    status = space.phase("Succeeded")
    assert (status["attempts"], status["preemptions"]) == (1, 0)
    assert [one["metadata"]["name"] for one in jobsets(space)] == ["bot-train"]
    assert status["cost"]["chipHours"] > 0
    run = status["ledger"]["open"][0]
    assert run["chips"] == 8


def test_a_slice_that_keeps_failing_ends_after_its_retries(space: Space) -> None:
    sliced(space, seconds=0.5, code=1, limits={"retries": 1})
    status = space.phase("Failed", reason="RetriesExhausted")
    assert status["attempts"] == 2
    assert "limits.retries allows 1" in status["message"]


def test_a_slice_with_bad_input_is_not_started_again(space: Space) -> None:
    sliced(space, seconds=0.5, code=2)
    status = space.phase("Failed")
    assert ready(status)["reason"] == "BadInput", status
    assert status["attempts"] == 1


def test_a_slice_that_loses_a_machine_starts_again_as_the_same_attempt(
    space: Space, plane: ControlPlane, pool: Pool
) -> None:
    sliced(space, seconds=None)
    space.phase("Training")
    path = f"/api/v1/nodes/{pool.nodes[0]}"
    taints = plane.request("GET", path)["spec"]["taints"]
    # One pod that runs is enough for the phase: the other may not have its machine yet.
    plane.wait_for(
        lambda: {p["spec"].get("nodeName") for p in space.pods("train")} == set(pool.nodes),
        "both machines",
        60,
    )
    (victim,) = [p["metadata"]["name"] for p in space.pods("train") if p["spec"]["nodeName"] == pool.nodes[0]]
    nodes.taint(plane, pool.nodes[0], "cloud.google.com/impending-node-termination")
    pod = f"/api/v1/namespaces/{space.namespace}/pods/{victim}"
    plane.wait_for(lambda: "deletionTimestamp" in plane.request("GET", pod)["metadata"], "the eviction", 60)
    # A kubelet reports how the containers ended before it lets go of the pod; the simulated one does not.
    pods.finish(plane, space.namespace, victim, 143)
    plane.wait_for(lambda: space.status()["preemptions"] == 1, "the preemption", 60)
    plane.patch(path, {"spec": {"taints": taints}})
    status = space.phase("Training", timeout=120)
    assert (status["attempts"], status["preemptions"]) == (1, 1)


def queue(space: Space, chips: int) -> None:
    """A LocalQueue `tpu` over a quota of so many chips."""
    cluster, own = space.cluster, space.namespace
    group = "/apis/kueue.x-k8s.io/v1beta2"
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    cluster.apply({**head, "kind": "ResourceFlavor", "metadata": {"name": own}})
    quota = [
        {"name": "google.com/tpu", "nominalQuota": chips},
        {"name": "cpu", "nominalQuota": 1000},
        {"name": "memory", "nominalQuota": "10000Gi"},
        {"name": "ephemeral-storage", "nominalQuota": "10000Gi"},
    ]
    groups = [
        {"coveredResources": [q["name"] for q in quota], "flavors": [{"name": own, "resources": quota}]}
    ]
    cluster.apply(
        {
            **head,
            "kind": "ClusterQueue",
            "metadata": {"name": own},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {
            **head,
            "kind": "LocalQueue",
            "metadata": {"name": "tpu", "namespace": own},
            "spec": {"clusterQueue": own},
        },
    )
    assert cluster.exists(f"{group}/namespaces/{own}/localqueues/tpu")


def test_a_second_slice_waits_in_its_queue_until_the_first_one_is_done(space: Space) -> None:
    queue(space, chips=8)
    sliced(space, "first", seconds=4, queue={"name": "tpu"})
    space.phase("Training", name="first")
    sliced(space, "second", seconds=1, queue={"name": "tpu"})
    status = space.phase("Queued", name="second", reason="Queued")
    assert status["attempts"] == 0
    space.phase("Succeeded", name="first")
    status = space.phase("Succeeded", name="second")
    assert (status["attempts"], status["preemptions"]) == (1, 0)


def test_a_slice_that_kueue_evicts_waits_and_goes_on_when_it_is_admitted_again(space: Space) -> None:
    queue(space, chips=8)
    sliced(space, seconds=None, queue={"name": "tpu"})
    space.phase("Training")
    path = space.path("workloads", group="/apis/kueue.x-k8s.io/v1beta2")
    (workload,) = space.cluster.items(path)
    one = f"{path}/{workload['metadata']['name']}"
    space.cluster.patch(one, {"spec": {"active": False}})
    space.phase("Queued")
    time.sleep(1)
    assert space.status()["phase"] == "Queued"
    space.cluster.patch(one, {"spec": {"active": True}})
    status = space.phase("Training")
    assert (status["attempts"], status["preemptions"]) == (1, 1)
