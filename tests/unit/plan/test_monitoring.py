"""Metrics of training and serving are scraped by whichever monitoring the cluster has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Plan, Settings

GOOGLE, COREOS = (
    Settings(pod_monitoring=True),
    Settings(pod_monitor=True, pod_monitor_labels={"release": "prom"}),
)
KINDS = {"PodMonitoring": (GOOGLE, "endpoints"), "PodMonitor": (COREOS, "podMetricsEndpoints")}
HOSTS = {"spec.accelerator": {"type": "v5p", "topology": "2x2x4"}}


def monitors(made: Plan) -> list[dict[str, Any]]:
    return [one for one in made.manifests() if one["kind"] in KINDS]


def config(made: Plan) -> dict[str, Any]:
    return json.loads(made.stage("train").configmaps["support-bot-train"]["train.json"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, HOSTS, specs.TINY], ids=["one host", "slice", "cpu"])
def test_training_is_scraped_where_it_serves(kind: str, changes: dict[str, Any]):
    settings, field = KINDS[kind]
    made = plan.job(specs.job(changes), settings)
    (found,) = monitors(made)
    assert found["kind"] == kind
    (endpoint,) = found["spec"][field]
    (port,) = made.stage("train").container["ports"]
    assert endpoint == {"port": port["name"], "path": "/metrics", "interval": "15s"}
    assert config(made)["metricsPort"] == port["containerPort"]
    (policy,) = [one for one in made.shared if one["kind"] == "NetworkPolicy"]
    assert {"ports": [{"protocol": "TCP", "port": port["containerPort"]}]} in policy["spec"]["ingress"]
    wanted = dict(found["spec"]["selector"]["matchLabels"])
    # Only the first host of a slice serves: the others would be shown as down.
    assert wanted.pop("batch.kubernetes.io/job-completion-index", None) == ("0" if changes is HOSTS else None)
    assert wanted.items() <= made.stage("train").template["metadata"]["labels"].items()
    assert not wanted.items() <= made.stage("merge").template["metadata"]["labels"].items()


def test_a_prometheus_finds_the_monitor_by_its_label():
    for made in (plan.job(specs.job(), COREOS), plan.endpoint(specs.endpoint(), COREOS)):
        (found,) = monitors(made)
        assert found["metadata"]["labels"]["release"] == "prom"
        assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "tunewright"


def test_where_both_are_installed_pods_are_scraped_once():
    both = Settings(pod_monitoring=True, pod_monitor=True)
    for made in (plan.job(specs.job(), both), plan.endpoint(specs.endpoint(), both)):
        assert [one["kind"] for one in monitors(made)] == ["PodMonitoring"]


def test_nobody_listens_where_nobody_scrapes():
    made = plan.job(specs.job())
    assert not monitors(made)
    assert "ports" not in made.stage("train").container
    assert "metricsPort" not in config(made) or config(made)["metricsPort"] is None
    (policy,) = [one for one in made.shared if one["kind"] == "NetworkPolicy"]
    assert len(policy["spec"]["ingress"]) == 1


def test_what_has_no_metrics_is_not_scraped():
    assert not monitors(plan.job(specs.job(specs.GPU), GOOGLE))  # the PyTorch program serves none
    assert not monitors(plan.endpoint(specs.endpoint({"spec.accelerator": {"type": "cpu"}}), GOOGLE))
