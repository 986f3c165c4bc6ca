# ruff: noqa: F811  (fixtures are imported by name)
"""ServeEndpoints on a real API server: the model, the server, its gate, rollouts, and what heals."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from . import pods
from .api import Cluster, Object, condition
from .operating import Operator, Space, operator, ready, space  # noqa: F401

REVISION = "tunewright.dev/revision"


def up(space: Space, but: set[str] | None = None) -> str:
    """A server pod comes and is ready; returns its name."""
    name = space.pod("serve", but)
    pods.run(space.cluster, space.namespace, name)
    return name


def passed(space: Space, code: int = 0, but: set[str] | None = None) -> str:
    """The gate's pod comes and ends; returns its name."""
    name = space.pod("gate", but)
    pods.finish(space.cluster, space.namespace, name, code)
    return name


def preview(space: Space, gate: str) -> str:
    """The Service that a gate's pod asks: the host of its --url."""
    (pod,) = [one for one in space.pods("gate") if one["metadata"]["name"] == gate]
    command = pod["spec"]["containers"][0]["command"]
    return str(command[command.index("--url") + 1].removeprefix("http://").partition(".")[0])


def asked(space: Space, gate: str) -> set[str]:
    """The servers that a gate's pod asks: those that its Service selects."""
    path = f"/api/v1/namespaces/{space.namespace}/services/{preview(space, gate)}"
    wanted = space.cluster.request("GET", path)["spec"]["selector"].items()
    return {p["metadata"]["name"] for p in space.pods("serve") if wanted <= p["metadata"]["labels"].items()}


def reached(space: Space, service: str = "bot") -> set[str]:
    """The ready servers that a Service, at first the endpoint's own, selects.

    By its selector: a pod on no node is in no EndpointSlice.
    """
    path = f"/api/v1/namespaces/{space.namespace}/services/{service}"
    wanted = space.cluster.request("GET", path)["spec"]["selector"].items()
    found = [p for p in space.pods("serve") if condition(p, "Ready")]
    return {p["metadata"]["name"] for p in found if wanted <= p["metadata"]["labels"].items()}


def replaced(space: Space, first: str) -> str:
    """The old server ends, as a kubelet would end it, and the new one is ready; returns its name."""

    def gone() -> bool:
        pods.end_deleted(space.cluster, space.namespace)
        return first not in [p["metadata"]["name"] for p in space.pods("serve")]

    space.cluster.wait_for(gone, "the end of the old server", 30)
    return up(space, {first})


def serving(space: Space, **spec: Any) -> Object:
    """An endpoint that is Ready, from a model in a bucket."""
    space.endpoint(**{"model": {"uri": "gs://acme/models/one"}, **spec})
    up(space)
    passed(space)
    return space.phase("Ready", "ServeEndpoint")


def published(space: Space) -> None:
    """A job that has published its model."""
    space.job()
    pods.finish(space.cluster, space.namespace, space.pod("train"))
    merge = space.pod("merge")
    space.progress(stage="merge", done=True, artifacts={"merged": "d" * 64, "base": "b" * 64})
    pods.finish(space.cluster, space.namespace, merge)
    space.phase("Succeeded")


def test_an_endpoint_waits_for_its_job_serves_verifies_and_is_ready(space: Space, cluster: Cluster) -> None:
    space.endpoint()
    status = space.phase("Pending", "ServeEndpoint", reason="ReferenceNotFound")
    assert 'FineTuneJob "bot"' in status["message"]
    published(space)
    server = space.pod("serve")
    space.phase("Provisioning", "ServeEndpoint")
    assert space.names("services") == []
    pods.run(cluster, space.namespace, server)
    status = space.phase("Verifying", "ServeEndpoint")
    assert ready(status)["status"] == "Unknown"
    assert "bot" not in space.names("services")
    passed(space)
    status = space.phase("Ready", "ServeEndpoint")
    assert "bot" in space.names("services")
    assert condition({"status": status}, "Ready")
    assert condition({"status": status}, "Available")
    assert status["url"] == f"http://bot.{space.namespace}.svc/v1"
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    model = status["model"]
    assert (model["job"], model["digest"], model["uri"]) == ("bot", "d" * 64, "gs://acme/models/bot/merged")
    assert model["baseDigest"] == "b" * 64
    scale = cluster.request("GET", space.path("serveendpoints", "bot") + "/scale")
    assert scale["status"]["replicas"] == 1
    found = cluster.items(
        f"/api/v1/namespaces/{space.namespace}/pods", labelSelector=scale["status"]["selector"]
    )
    assert [p["metadata"]["name"] for p in found] == [server]


def test_an_endpoint_whose_job_is_deleted_goes_on_serving_and_says_so(space: Space, cluster: Cluster) -> None:
    published(space)
    space.endpoint()
    server = up(space)
    passed(space)
    space.phase("Ready", "ServeEndpoint")
    cluster.request("DELETE", space.path("finetunejobs", "bot"))
    cluster.wait_for(
        lambda: condition(space.get("ServeEndpoint"), "ModelAvailable", "False") is not None,
        "word of the missing job", 30,
    )  # fmt: skip
    status = space.status("ServeEndpoint")
    assert (status["phase"], status["model"]["digest"]) == ("Ready", "d" * 64)
    assert "does not exist" in condition({"status": status}, "ModelAvailable", "False")["message"]
    assert [p["metadata"]["name"] for p in space.pods("serve")] == [server]


def test_an_endpoint_of_a_failed_job_needs_somebody(space: Space, cluster: Cluster) -> None:
    space.job()
    pods.finish(cluster, space.namespace, space.pod("train"), 2)
    space.endpoint()
    status = space.phase("Pending", "ServeEndpoint", reason="JobFailed")
    assert ready(status)["status"] == "False"


def test_a_model_that_its_gate_refuses_is_not_ready_and_has_no_service(
    space: Space, cluster: Cluster
) -> None:
    space.endpoint(model={"uri": "gs://acme/models/one"})
    up(space)
    passed(space, code=2)
    status = space.phase("Failed", "ServeEndpoint", reason="GateFailed")
    assert "refused by its gate" in status["message"]
    assert "bot" not in space.names("services")


def test_a_server_that_keeps_ending_needs_somebody_and_heals(space: Space, cluster: Cluster) -> None:
    space.endpoint(model={"uri": "gs://acme/models/one"})
    server = space.pod("serve")
    pods.wait(cluster, space.namespace, server, "CrashLoopBackOff")
    space.phase("Failed", "ServeEndpoint", reason="Restarting")
    pods.run(cluster, space.namespace, server)
    passed(space)
    space.phase("Ready", "ServeEndpoint")


def test_a_deployment_that_is_changed_by_hand_is_put_right(space: Space, cluster: Cluster) -> None:
    serving(space)
    path = space.path("deployments", "bot-serve", "/apis/apps/v1")
    cluster.patch(path, {"spec": {"template": {"spec": {"enableServiceLinks": True}}}})
    cluster.wait_for(
        lambda: cluster.request("GET", path)["spec"]["template"]["spec"]["enableServiceLinks"] is False,
        "the planned template", 30,
    )  # fmt: skip


def test_a_service_that_is_deleted_or_changed_by_hand_comes_back_as_planned(
    space: Space, cluster: Cluster
) -> None:
    serving(space)
    path = f"/api/v1/namespaces/{space.namespace}/services/bot"
    planned = cluster.request("GET", path)["spec"]["selector"]
    cluster.request("DELETE", path)
    cluster.wait_for(lambda: cluster.exists(path), "the Service", 30)
    cluster.patch(path, {"spec": {"selector": {"tunewright.dev/endpoint": "other"}}})
    cluster.wait_for(
        lambda: cluster.request("GET", path)["spec"]["selector"] == planned, "the planned selector", 30
    )


def test_replicas_follow_kubectl_scale_down_to_zero_and_back(space: Space, cluster: Cluster) -> None:
    serving(space)
    cluster.kubectl("scale", "-n", space.namespace, "serveendpoint/bot", "--replicas=0")
    status = space.phase("Stopped", "ServeEndpoint", reason="ScaledToZero")
    assert condition({"status": status}, "Reconciling", "False")
    cluster.kubectl("scale", "-n", space.namespace, "serveendpoint/bot", "--replicas=2")
    first = up(space)
    up(space, {first})
    status = space.phase("Ready", "ServeEndpoint")
    assert status["readyReplicas"] == 2


def deployments(space: Space) -> list[str]:
    return space.names("deployments")


def test_blue_green_moves_the_traffic_only_once_the_new_model_is_verified(
    space: Space, cluster: Cluster
) -> None:
    serving(space, rollout={"strategy": "blueGreen"})
    service = f"/api/v1/namespaces/{space.namespace}/services/bot"
    old = cluster.request("GET", service)["spec"]["selector"][REVISION]
    first = space.pods("serve")[0]["metadata"]["name"]
    gate = space.pods("gate")[0]["metadata"]["name"]
    space.change({"model": {"uri": "gs://acme/models/two"}}, "ServeEndpoint")
    second = space.pod("serve", {first})
    assert cluster.request("GET", service)["spec"]["selector"][REVISION] == old
    pods.run(cluster, space.namespace, second)
    status = space.phase("Verifying", "ServeEndpoint")
    assert condition({"status": status}, "Available")
    assert status["model"]["uri"] == "gs://acme/models/one"
    assert cluster.request("GET", service)["spec"]["selector"][REVISION] == old
    assert asked(space, passed(space, but={gate})) == {second}, (
        "the gate asks the new server, not the old one"
    )
    status = space.phase("Ready", "ServeEndpoint")
    assert status["model"]["uri"] == "gs://acme/models/two"
    assert cluster.request("GET", service)["spec"]["selector"][REVISION] != old
    cluster.wait_for(lambda: len(deployments(space)) == 1, "the end of the old Deployment", 30)


def test_blue_green_keeps_the_old_model_when_the_new_one_is_refused(space: Space, cluster: Cluster) -> None:
    serving(space, rollout={"strategy": "blueGreen"})
    service = f"/api/v1/namespaces/{space.namespace}/services/bot"
    old = cluster.request("GET", service)["spec"]["selector"]
    first = space.pods("serve")[0]["metadata"]["name"]
    gate = space.pods("gate")[0]["metadata"]["name"]
    space.change({"model": {"uri": "gs://acme/models/two"}}, "ServeEndpoint")
    up(space, {first})
    passed(space, code=2, but={gate})
    status = space.phase("Failed", "ServeEndpoint", reason="GateFailed")
    assert condition({"status": status}, "Available")
    assert status["model"]["uri"] == "gs://acme/models/one"
    assert cluster.request("GET", service)["spec"]["selector"] == old
    assert first in [p["metadata"]["name"] for p in space.pods("serve")]
    space.change({"model": {"uri": "gs://acme/models/one"}}, "ServeEndpoint")
    space.phase("Ready", "ServeEndpoint")
    cluster.wait_for(lambda: len(deployments(space)) == 1, "the end of the refused Deployment", 30)


def test_recreate_rolls_out_a_new_model_and_sweeps_what_the_old_one_left(
    space: Space, cluster: Cluster
) -> None:
    serving(space)
    first = space.pods("serve")[0]["metadata"]["name"]
    gate = space.pods("gate")[0]["metadata"]["name"]
    cluster.wait_for(lambda: reached(space) == {first}, "traffic to the first server", 30)
    space.change({"model": {"uri": "gs://acme/models/two"}}, "ServeEndpoint")
    second = replaced(space, first)
    status = space.phase("Verifying", "ServeEndpoint")
    assert condition({"status": status}, "Available", "False")
    asks = preview(space, space.pod("gate", {gate}))
    cluster.wait_for(lambda: reached(space, asks) == {second}, "the gate's way to the second server", 30)
    assert second not in reached(space), "nobody reaches a model that is not verified"
    passed(space, but={gate})
    status = space.phase("Ready", "ServeEndpoint")
    assert status["model"]["uri"] == "gs://acme/models/two"
    cluster.wait_for(lambda: reached(space) == {second}, "traffic to the second server", 30)
    cluster.wait_for(
        lambda: len(space.names("configmaps")) == 1 and len(space.names("jobs")) == 1, "a clean namespace", 30
    )


def test_recreate_sends_no_traffic_to_a_model_that_its_gate_refuses_and_heals(
    space: Space, cluster: Cluster
) -> None:
    serving(space)
    first = space.pods("serve")[0]["metadata"]["name"]
    gate = space.pods("gate")[0]["metadata"]["name"]
    space.change({"model": {"uri": "gs://acme/models/two"}}, "ServeEndpoint")
    second = replaced(space, first)
    passed(space, code=2, but={gate})
    status = space.phase("Failed", "ServeEndpoint", reason="GateFailed")
    assert "refused by its gate" in status["message"]
    for kind, truth in (("Ready", "False"), ("Stalled", "True"), ("Available", "False")):
        assert condition({"status": status}, kind, truth), kind
    assert status["model"]["uri"] == "gs://acme/models/one"  # what answered right last
    assert second not in reached(space)
    space.change({"model": {"uri": "gs://acme/models/one"}}, "ServeEndpoint")
    third = replaced(space, second)
    space.phase("Ready", "ServeEndpoint")
    cluster.wait_for(lambda: reached(space) == {third}, "traffic to the first model again", 30)


def test_a_benchmark_runs_once_the_endpoint_is_ready_and_its_figures_stand_in_status(
    space: Space, cluster: Cluster
) -> None:
    serving(space, benchmark={"rates": [2.0]})
    probe = space.pod("bench")
    latency = {"mean": 120.0, "p50": 100.0, "p99": 250.0}
    point = {
        "rate": 2.0, "requests": 100, "errors": 2, "seconds": 49.0, "inputTokens": 51200, "outputTokens": 24500,
        "ttft": latency, "tpot": latency, "itl": {"mean": 20.0, "p50": 20.0},
    }  # fmt: skip
    report = {
        "model": "bot", "modelDigest": "e" * 64, "engine": "vllm", "inputTokens": 512, "outputTokens": 256,
        "uniquePrompts": True, "points": [point],
        "hardware": {"type": "cpu", "chips": 0, "price": {"usd": 0.0, "date": "2026-12-01", "source": "none"}},
    }  # fmt: skip
    path = f"/api/v1/namespaces/{space.namespace}/configmaps/bot-benchmark"
    cluster.patch(path, {"data": {"benchmark.json": json.dumps(report)}})
    pods.finish(cluster, space.namespace, probe)
    cluster.wait_for(lambda: "benchmark" in space.status("ServeEndpoint"), "the figures", 30)
    status = space.status("ServeEndpoint")
    assert status["phase"] == "Ready"
    (result,) = status["benchmark"]["results"]
    assert result == {
        "rate": 2, "requestsPerSecond": 2, "outputTokensPerSecond": 500, "ttftP50": 0.1, "ttftP99": 0.25,
        "itlP50": 0.02, "failed": 2,
    }  # fmt: skip
    of = probe.removeprefix("bot-bench-").partition("-")[0]
    assert (status["benchmark"]["revision"], status["benchmark"]["generation"]) == (of, 1)
    # The figures of one model are none of the next.
    (first,) = [one["metadata"]["name"] for one in space.pods("serve")]
    gates = {one["metadata"]["name"] for one in space.pods("gate")}
    space.change({"model": {"uri": "gs://acme/models/two"}}, "ServeEndpoint")
    replaced(space, first)
    passed(space, but=gates)
    cluster.wait_for(lambda: "benchmark" not in space.status("ServeEndpoint"), "the end of the figures", 30)
    space.phase("Ready", "ServeEndpoint")
    space.pod("bench", {probe})


def test_turning_autoscaling_off_removes_the_autoscaler(space: Space, cluster: Cluster) -> None:
    serving(space, autoscaling={"min": 1, "max": 3})
    path = space.path("horizontalpodautoscalers", "bot-serve", "/apis/autoscaling/v2")
    assert cluster.exists(path)
    space.change({"autoscaling": None}, "ServeEndpoint")
    cluster.wait_for(lambda: not cluster.exists(path), "the end of the autoscaler", 30)


def test_a_missing_cache_claim_is_named_and_heals_when_it_appears(space: Space, cluster: Cluster) -> None:
    space.endpoint(model={"uri": "gs://acme/models/one"}, compileCache={"pvc": "vllm-cache"})
    status = space.phase("Pending", "ServeEndpoint", reason="ReferenceNotFound")
    assert 'PersistentVolumeClaim "vllm-cache" (spec.compileCache.pvc)' in status["message"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{space.namespace}/persistentvolumeclaims"
    cluster.request("POST", path, {"metadata": {"name": "vllm-cache"}, "spec": claim})
    space.pod("serve")


def test_deleting_an_endpoint_leaves_nothing(space: Space, cluster: Cluster) -> None:
    serving(space)
    cluster.request("DELETE", space.path("serveendpoints", "bot"))

    def gone() -> bool:
        pods.end_deleted(cluster, space.namespace)
        kinds = ("deployments", "services", "configmaps", "jobs", "pods", "poddisruptionbudgets")
        return not any(space.names(kind) for kind in kinds)

    cluster.wait_for(gone, "the end of every child", 60)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_endpoint_that_is_served_is_not_touched_again(
    replicas: int, space: Space, cluster: Cluster
) -> None:
    space.endpoint(model={"uri": "gs://acme/models/one"}, replicas=replicas)
    up_names = {up(space)}
    if replicas == 2:
        up(space, up_names)
    passed(space)
    space.phase("Ready", "ServeEndpoint")
    cluster.wait_for(lambda: space.status("ServeEndpoint")["readyReplicas"] == replicas, "all replicas", 30)
    time.sleep(2)
    arguments = ("--namespaces", space.namespace, "--resync", "1", "--pulse", "0.2")
    with Operator(cluster, *arguments, name="second") as second:
        time.sleep(5)
        assert second.writes() == {}, second.lines()
