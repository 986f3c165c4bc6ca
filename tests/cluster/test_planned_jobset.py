"""The planned JobSet under the real controllers: bad input ends it, preemption restarts it for nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Plan

from . import nodes, pods
from .api import Cluster, Object, condition

HOSTS = 4
SLICE = {"spec.model.name": "gemma-4-e4b", "spec.accelerator": {"type": "v6e", "topology": "4x4"}}


@pytest.fixture(scope="module")
def pool(batch: Cluster) -> Iterator[nodes.Pool]:
    """The four hosts of one slice; the tests set their pods' statuses."""
    made = nodes.fake_tpu_nodes(batch, HOSTS, accelerator="tpu-v6e-slice", topology="4x4", chips=4)
    yield made
    made.delete(batch)


class Slice:
    """A planned JobSet and its pods."""

    def __init__(self, cluster: Cluster, namespace: str, made: Plan) -> None:
        self.cluster, self.namespace = cluster, namespace
        stage = made.stage("train")
        for manifest in (*made.shared, *stage.manifests):
            found = copy.deepcopy(manifest)
            found["metadata"]["namespace"] = namespace
            for subject in found.get("subjects", []):
                subject["namespace"] = namespace
            cluster.apply(found)
        name = stage.workload["metadata"]["name"]
        self.path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"

    def pods(self) -> list[Object]:
        """The pods of the present attempt that have a node."""
        found = self.cluster.items(f"/api/v1/namespaces/{self.namespace}/pods")
        return [p for p in found if "deletionTimestamp" not in p["metadata"] and p["spec"].get("nodeName")]

    def start(self) -> list[str]:
        """Waits for every host and has it run. Returns the pods' names, the first host's first."""
        self.until(lambda: len(self.pods()) == HOSTS, "a pod on each host")
        index = "batch.kubernetes.io/job-completion-index"
        found = sorted(self.pods(), key=lambda p: int(p["metadata"]["labels"][index]))
        names = [p["metadata"]["name"] for p in found]
        for name in names:
            pods.run(self.cluster, self.namespace, name)
        return names

    def status(self) -> Object:
        return self.cluster.request("GET", self.path).get("status", {})

    def restarts(self) -> tuple[int, int]:
        """(all, those that count)."""
        status = self.status()
        return status.get("restarts", 0), status.get("restartsCountTowardsMax", 0)

    def ended(self) -> bool:
        return condition(self.cluster.request("GET", self.path), "Failed") is not None

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Waits, ending deleted pods meanwhile as a kubelet would."""

        def turn() -> bool:
            pods.end_deleted(self.cluster, self.namespace)
            return ready()

        self.cluster.wait_for(turn, what)


@pytest.fixture
def slice_(batch: Cluster, batch_namespace: str, pool: nodes.Pool) -> Iterator[Slice]:
    made = Slice(batch, batch_namespace, plan.job(specs.job(SLICE)))
    yield made
    # The hosts are free again before the next test.
    batch.request("DELETE", f"{made.path}?propagationPolicy=Foreground")
    made.until(lambda: not made.pods(), "the hosts to be free")


def test_every_host_gets_one_pod_of_one_pool(slice_: Slice, batch: Cluster, pool: nodes.Pool) -> None:
    slice_.start()
    assert {p["spec"]["nodeName"] for p in slice_.pods()} == set(pool.nodes)


def test_all_hosts_done_is_done(slice_: Slice, batch: Cluster) -> None:
    for name in slice_.start():
        pods.finish(batch, slice_.namespace, name, 0)
    slice_.until(
        lambda: condition(batch.request("GET", slice_.path), "Completed") is not None, "the JobSet's end"
    )


def test_bad_input_on_any_host_ends_it_without_a_restart(slice_: Slice, batch: Cluster) -> None:
    pods.finish(batch, slice_.namespace, slice_.start()[2], 2)
    slice_.until(slice_.ended, "the JobSet's end")
    assert slice_.restarts() == (0, 0)


@pytest.mark.parametrize("how", ["exit code 75", "DisruptionTarget"])
def test_preemption_of_one_host_restarts_all_and_does_not_count(
    slice_: Slice, batch: Cluster, how: str
) -> None:
    names = slice_.start()
    if how == "DisruptionTarget":
        pods.evict(batch, slice_.namespace, names[1], "PreemptionByScheduler")
    else:
        pods.finish(batch, slice_.namespace, names[1], 75)
    slice_.until(lambda: slice_.restarts()[0] == 1, "a restart")
    assert slice_.restarts() == (1, 0)
    again = slice_.start()
    assert not set(again) & set(names), "every host starts anew"


def test_any_other_failure_restarts_all_and_counts(slice_: Slice, batch: Cluster) -> None:
    pods.finish(batch, slice_.namespace, slice_.start()[0], 1)
    slice_.until(lambda: slice_.restarts()[0] == 1, "a restart")
    assert slice_.restarts() == (1, 1)
