"""JobSet, Kueue and simulated kubelets, as the tests of multi-host jobs and queues need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import nodes, simulate
from .api import ApiError, Cluster, Object, condition

CHIPS = 4
HOSTS = 2


@pytest.fixture(scope="module")
def pool(batch: Cluster) -> Iterator[nodes.Pool]:
    """Two simulated hosts of one slice."""
    made = nodes.fake_tpu_nodes(batch, HOSTS, topology="2x2x2", chips=CHIPS, labels={simulate.LABEL: "true"})
    yield made
    made.delete(batch)


@pytest.fixture
def queue(batch: Cluster, batch_namespace: str) -> Iterator[str]:
    """A LocalQueue whose quota is one slice; its cluster-wide parts go with the test."""
    name = batch_namespace
    batch.apply(
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}},
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [
                    {
                        "coveredResources": [nodes.TPU],
                        "flavors": [
                            {
                                "name": name,
                                "resources": [{"name": nodes.TPU, "nominalQuota": CHIPS * HOSTS}],
                            }
                        ],
                    }
                ],
            },
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": "tpu", "namespace": batch_namespace},
            "spec": {"clusterQueue": name},
        },
    )
    yield "tpu"
    # While Kueue still runs to release their finalizers.
    batch.request("DELETE", f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{name}")
    batch.request("DELETE", f"/apis/kueue.x-k8s.io/v1beta2/resourceflavors/{name}")


def jobset(
    pool: nodes.Pool, *, seconds: int | None, code: int = 0, restarts: int = 0, queue: str | None = None
) -> Object:
    annotations = (
        {} if seconds is None else {simulate.FINISH_AFTER: f"{seconds}s", simulate.EXIT_CODE: str(code)}
    )
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"cloud.google.com/gke-nodepool": pool.name},
        "tolerations": [{"key": nodes.TPU, "operator": "Exists"}],
        "containers": [
            {
                "name": "c",
                "image": "localhost/none:1",
                "resources": {"requests": {nodes.TPU: CHIPS}, "limits": {nodes.TPU: CHIPS}},
            }
        ],
    }
    job = {
        "parallelism": HOSTS,
        "completions": HOSTS,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"metadata": {"annotations": annotations}, "spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {}},
        "spec": {
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }


class JobSets:
    """The JobSets of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"

    def create(self, wanted: Object, name: str = "js") -> None:
        wanted["metadata"]["name"] = name
        self.cluster.request("POST", self.path, wanted)

    def await_condition(self, kind: str, name: str = "js", status: str = "True") -> Object:
        def there() -> bool:
            return condition(self.cluster.request("GET", f"{self.path}/{name}"), kind, status) is not None

        self.cluster.wait_for(there, f"condition {kind}={status} of the JobSet {name}")
        return self.cluster.request("GET", f"{self.path}/{name}")


@pytest.fixture
def jobsets(batch: Cluster, batch_namespace: str) -> JobSets:
    return JobSets(batch, batch_namespace)


def test_a_jobset_runs_a_pod_on_each_host_to_its_end(
    batch: Cluster, batch_namespace: str, jobsets: JobSets, pool: nodes.Pool
) -> None:
    jobsets.create(jobset(pool, seconds=1))
    jobsets.await_condition("Completed")
    pods = batch.items(f"/api/v1/namespaces/{batch_namespace}/pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == set(pool.nodes)
    assert batch.exists(
        f"/api/v1/namespaces/{batch_namespace}/services/js"
    )  # the hosts' names for each other


def test_a_jobset_restarts_on_a_bad_exit_code_and_then_fails(jobsets: JobSets, pool: nodes.Pool) -> None:
    jobsets.create(jobset(pool, seconds=1, code=42, restarts=1))
    found = jobsets.await_condition("Failed")
    assert condition(found, "Failed")["reason"] == "ReachedMaxRestarts"  # type: ignore[index]
    assert found["status"]["restarts"] == 1


def test_jobset_admission_refuses_what_its_schema_cannot(jobsets: JobSets, pool: nodes.Pool) -> None:
    wanted = jobset(pool, seconds=1)
    wanted["spec"]["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["absent"]}
    with pytest.raises(ApiError, match=r"denied the request.*absent"):
        jobsets.create(wanted)


def test_kueue_admits_a_second_slice_when_the_first_is_gone(
    jobsets: JobSets, pool: nodes.Pool, queue: str
) -> None:
    jobsets.create(jobset(pool, seconds=None, queue=queue), name="first")
    jobsets.await_condition("Suspended", name="first", status="False")
    jobsets.create(jobset(pool, seconds=1, queue=queue), name="second")
    assert jobsets.await_condition("Suspended", name="second")["spec"]["suspend"] is True
    jobsets.cluster.request("DELETE", f"{jobsets.path}/first")
    assert jobsets.await_condition("Completed", name="second")["spec"]["suspend"] is False
