"""The test cluster itself: what every other test of this folder takes for granted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from . import nodes, pods
from .api import ApiError, Cluster, KubectlError, Object, condition
from .control import ControlPlane

WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.selftest.tunewright.dev"},
    "spec": {
        "group": "selftest.tunewright.dev",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low <= self.high", "message": "low must not exceed high"}
                                ],
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def widgets(cluster: Cluster, namespace: str, tmp_path: Path) -> str:
    """The path of a namespaced resource with a CEL rule and a status subresource."""
    file = tmp_path / "crds" / "widgets.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(WIDGETS))
    cluster.install_crds([file.parent])
    return f"/apis/selftest.tunewright.dev/v1/namespaces/{namespace}/widgets"


def widget(name: str = "w", low: int = 1, high: int = 2) -> Object:
    return {
        "apiVersion": "selftest.tunewright.dev/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"low": low, "high": high},
    }


def job(name: str = "train", **pod: object) -> Object:
    container = {"name": "c", "image": "localhost/none:1", "resources": pod.pop("resources", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container], **pod}},
        },
    }


def tpu_job(pool: nodes.Pool, chips: int) -> Object:
    return job(
        nodeSelector={"cloud.google.com/gke-nodepool": pool.name},
        tolerations=[{"key": nodes.TPU, "operator": "Exists"}],
        resources={"requests": {nodes.TPU: chips}, "limits": {nodes.TPU: chips}},
    )


def create_job(cluster: Cluster, namespace: str, wanted: Object) -> None:
    cluster.request("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", wanted)


def only_pod(cluster: Cluster, namespace: str, when: Callable[[Object], bool] = bool) -> Object:
    """The namespace's pod, as soon as it is there and `when` holds for it."""
    seen: list[Object] = []

    def there() -> bool:
        seen[:] = [pod for pod in cluster.items(f"/api/v1/namespaces/{namespace}/pods") if when(pod)]
        return bool(seen)

    cluster.wait_for(there, f"a pod in {namespace}")
    return seen[0]


def scheduled(pod: Object) -> bool:
    return "nodeName" in pod["spec"]


def job_condition(cluster: Cluster, namespace: str, kind: str, name: str = "train") -> Object:
    """A condition of the Job, as soon as it is true."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
    cluster.wait_for(lambda: condition(cluster.request("GET", path), kind) is not None, f"{kind} of {name}")
    return condition(cluster.request("GET", path), kind) or {}


def test_it_is_a_current_kubernetes(cluster: Cluster) -> None:
    version = cluster.request("GET", "/version")
    assert (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 34)
    assert "Server Version" in cluster.kubectl("version")


def test_a_cel_rule_refuses_an_object_with_its_message(cluster: Cluster, widgets: str) -> None:
    with pytest.raises(ApiError) as refusal:
        cluster.request("POST", widgets, widget(low=3, high=2))
    assert refusal.value.status == 422
    assert "low must not exceed high" in refusal.value.message
    cluster.request("POST", widgets, widget())


def test_apply_reports_a_refusal_in_the_words_of_the_server(
    cluster: Cluster, namespace: str, widgets: str
) -> None:
    bad = widget(low=3, high=2)
    bad["metadata"]["namespace"] = namespace
    with pytest.raises(KubectlError, match="low must not exceed high"):
        cluster.apply(bad)


def test_status_is_written_by_its_subresource_only(cluster: Cluster, widgets: str) -> None:
    cluster.request("POST", widgets, widget() | {"status": {"phase": "Ignored"}})
    assert "status" not in cluster.request("GET", f"{widgets}/w")
    written = cluster.patch(f"{widgets}/w/status", {"status": {"phase": "Ready"}, "spec": {"high": 9}})
    assert written["status"] == {"phase": "Ready"}
    assert written["spec"]["high"] == 2
    assert written["metadata"]["generation"] == 1


def test_a_job_makes_a_pod_and_follows_its_end(cluster: Cluster, namespace: str) -> None:
    create_job(cluster, namespace, job())
    pod = only_pod(cluster, namespace)
    assert pod["metadata"]["labels"]["job-name"] == "train"
    pods.finish(cluster, namespace, pod["metadata"]["name"])
    assert job_condition(cluster, namespace, "Complete")


def test_a_job_fails_by_the_exit_code_that_its_pod_reports(cluster: Cluster, namespace: str) -> None:
    wanted = job()
    policy = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}
    wanted["spec"] |= {"backoffLimit": 3, "podFailurePolicy": {"rules": [policy]}}
    create_job(cluster, namespace, wanted)
    pods.finish(cluster, namespace, only_pod(cluster, namespace)["metadata"]["name"], exit_code=2)
    assert job_condition(cluster, namespace, "Failed")["reason"] == "PodFailurePolicy"


def test_the_scheduler_puts_a_tpu_pod_on_a_fake_tpu_node(cluster: Cluster, namespace: str) -> None:
    pool = nodes.fake_tpu_nodes(cluster, 1, accelerator="tpu-v5p-slice", topology="2x2x1", chips=4)
    create_job(cluster, namespace, tpu_job(pool, chips=4))
    assert only_pod(cluster, namespace, scheduled)["spec"]["nodeName"] in pool.nodes
    pool.delete(cluster)


def test_a_slice_that_is_too_small_leaves_its_pod_unschedulable(cluster: Cluster, namespace: str) -> None:
    pool = nodes.fake_tpu_nodes(cluster, 1, chips=4)
    create_job(cluster, namespace, tpu_job(pool, chips=8))

    def refused(pod: Object) -> bool:
        found = condition(pod, "PodScheduled", status="False")
        return found is not None and found["reason"] == "Unschedulable"

    only_pod(cluster, namespace, refused)
    pool.delete(cluster)


def test_a_preempted_node_evicts_its_pod_as_a_disruption(cluster: Cluster, namespace: str) -> None:
    pool = nodes.fake_tpu_nodes(cluster, 1)
    wanted = tpu_job(pool, chips=4)
    wanted["spec"]["template"]["spec"]["tolerations"][0]["effect"] = "NoSchedule"
    create_job(cluster, namespace, wanted)
    name = only_pod(cluster, namespace, scheduled)["metadata"]["name"]
    pods.run(cluster, namespace, name)
    nodes.taint(cluster, pool.nodes[0], "cloud.google.com/impending-node-termination")

    def disrupted(pod: Object) -> bool:
        return condition(pod, "DisruptionTarget") is not None

    assert only_pod(cluster, namespace, disrupted)["metadata"]["name"] == name
    cluster.wait_for(lambda: name in pods.end_deleted(cluster, namespace), "the deletion of the pod")
    pool.delete(cluster)


def test_a_service_account_may_do_only_what_a_role_gives_it(cluster: Cluster, namespace: str) -> None:
    token = cluster.service_account_token(namespace, "default")
    with pytest.raises(ApiError) as refusal:
        cluster.request("GET", f"/api/v1/namespaces/{namespace}/configmaps", token=token)
    assert refusal.value.status == 403  # known (not 401), and denied


def test_a_restarted_api_server_keeps_the_data(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    plane.request("POST", path, {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    before = plane.pids["kube-apiserver"]
    plane.restart_apiserver()
    assert plane.pids["kube-apiserver"] != before
    assert plane.request("GET", f"{path}/kept")["data"] == {"a": "b"}


def test_a_watch_from_before_a_restart_is_gone(plane: ControlPlane, namespace: str) -> None:
    """How a test gets the 410 that every watcher has to live with."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    before = plane.request("POST", path, {"metadata": {"name": "old"}})["metadata"]["resourceVersion"]
    plane.request("POST", path, {"metadata": {"name": "new"}})
    plane.restart_apiserver()
    event = plane.request("GET", f"{path}?watch=true&resourceVersion={before}&timeoutSeconds=60")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_requests_are_counted_in_the_metrics_of_the_server(cluster: Cluster) -> None:
    assert "apiserver_request_total{" in cluster.request("GET", "/metrics")["message"]


def test_close_leaves_no_process_and_no_file(cluster: Cluster) -> None:
    """A second control plane beside the first: bare, since its own end is all that it is for."""
    other = ControlPlane(controllers=False)
    with other:
        pids = list(other.pids.values())
        assert len(pids) == 2
        assert other.url != cluster.url
        name = other.create_namespace()
        pod = {
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "localhost/none:1"}]},
        }
        other.request("POST", f"/api/v1/namespaces/{name}/pods", pod)  # without a service account controller
    assert not [pid for pid in pids if _runs(pid)]
    assert not other.folder.exists()
    other.close()  # twice is fine


def test_a_component_that_dies_is_reported_with_its_last_words(plane: ControlPlane) -> None:
    with pytest.raises(Exception, match=r"unknown flag: --no-such-flag") as problem:
        ControlPlane(controllers=False, apiserver_flags=["--no-such-flag"])
    assert "kube-apiserver ended with exit code" in str(problem.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_test_run_leaves_no_process(cluster: Cluster) -> None:
    script = (
        "import json, sys, time\n"
        "from tests.cluster.control import ControlPlane\n"
        "plane = ControlPlane(controllers=False)\n"
        "print(json.dumps([str(plane.folder), list(plane.pids.values())]), flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, pids = json.loads(run.stdout.readline())
        assert len(pids) == 2
        run.kill()
    cluster.wait_for(lambda: not [pid for pid in pids if _runs(pid)], "the end of the orphans")
    shutil.rmtree(folder)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
