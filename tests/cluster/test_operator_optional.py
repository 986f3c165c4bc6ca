"""Children of kinds that a cluster may have: scraping, an endpoint picker's pool, an autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from . import pods
from .build import UnavailableError
from .control import ControlPlane
from .operating import Operator, Space, install

CRDS = Path(__file__).with_name("foreign.yaml")
V6E = {"type": "v6e", "topology": "2x4"}
GOOGLE, COREOS = "/apis/monitoring.googleapis.com/v1", "/apis/monitoring.coreos.com/v1"
POOL = "/apis/inference.networking.k8s.io/v1"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of our own: what is installed here must not change what others see."""
    try:
        opened = ControlPlane(scheduler=True)
    except UnavailableError as lack:
        pytest.skip(str(lack))
    with opened:
        crds = [one for one in yaml.safe_load_all(CRDS.read_text()) if one]
        opened.apply(*crds)
        opened.established(one["metadata"]["name"] for one in crds)
        install(opened)
        yield opened


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Operator]:
    with Operator(plane, "--endpoint-picker", "picker", "--pod-monitor-labels", "release=prom") as running:
        yield running


@pytest.fixture
def space(plane: ControlPlane, operator: Operator) -> Iterator[Space]:
    name = plane.create_namespace()
    yield Space(plane, name)
    plane.delete_namespace(name)


def ready(space: Space) -> None:
    space.endpoint(model={"uri": "gs://acme/models/one"}, accelerator=V6E, autoscaling={"min": 1, "max": 3})
    pods.run(space.cluster, space.namespace, space.pod("serve"))
    pods.finish(space.cluster, space.namespace, space.pod("gate"))
    space.phase("Ready", "ServeEndpoint")


def test_a_job_is_scraped_while_it_trains(space: Space, plane: ControlPlane) -> None:
    made = space.job()
    name = space.pod("train")
    monitor = plane.request("GET", space.path("podmonitorings", "bot-train", GOOGLE))
    (pod,) = [one for one in space.pods("train") if one["metadata"]["name"] == name]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert port["name"] == monitor["spec"]["endpoints"][0]["port"]
    # The garbage collector learns of new kinds twice a minute: who owns it is what there is to see at once.
    (owner,) = monitor["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]


def test_an_endpoint_is_scraped_scaled_and_picked_from(space: Space, plane: ControlPlane) -> None:
    ready(space)
    (server,) = space.pods("serve")
    labels = server["metadata"]["labels"].items()
    monitor = plane.request("GET", space.path("podmonitorings", "bot-serve", GOOGLE))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    pool = plane.request("GET", space.path("inferencepools", "bot", POOL))
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels
    ports = {port["containerPort"] for port in server["spec"]["containers"][0]["ports"]}
    assert pool["spec"]["targetPorts"][0]["number"] in ports
    assert pool["spec"]["endpointPickerRef"]["name"] == "picker"
    scaler = plane.request("GET", space.path("horizontalpodautoscalers", "bot-serve", "/apis/autoscaling/v2"))
    assert plane.exists(space.path("deployments", scaler["spec"]["scaleTargetRef"]["name"], "/apis/apps/v1"))
    plane.request("DELETE", space.path("serveendpoints", "bot"))
    path = space.path("inferencepools", "bot", POOL)
    plane.wait_for(lambda: not plane.exists(path), "the end of the pool", 90)


def test_without_googles_kind_the_prometheus_operators_is_made(
    plane: ControlPlane, operator: Operator
) -> None:
    """Last in this file: the operator starts anew in a cluster that has lost a kind."""
    plane.request(
        "DELETE",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podmonitorings.monitoring.googleapis.com",
    )
    plane.wait_for(lambda: not plane.exists(f"{GOOGLE}/podmonitorings"), "the end of the kind", 60)
    operator.kill()
    operator.start()
    space = Space(plane, plane.create_namespace())
    space.job()
    space.pod("train")
    monitor = plane.request("GET", space.path("podmonitors", "bot-train", COREOS))
    assert monitor["metadata"]["labels"]["release"] == "prom"
    plane.delete_namespace(space.namespace)
