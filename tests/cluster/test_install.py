"""The chart and the overlays: what they render, what they refuse, and that an API server takes all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tunewright_operator.plan.settings import Settings
from tunewright_operator.reconcile import options, rbac

from .api import Cluster, Object
from .helm import HelmError, helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/tunewright"
KUSTOMIZE = ROOT / "manifests/overlays"
SYSTEM = "tunewright-system"

# Every value that changes what is rendered, as a platform team would give them.
VARIANTS: dict[str, list[str]] = {
    "defaults": [],
    "namespaced": ["namespaces={team-a,team-b}", "crds.install=false"],
    "own registry": ["image.registry=registry.example/mirror/", "imagePullSecrets[0].name=pull"],
    "placed": [
        "nodeSelector.pool=system",
        "tolerations[0].key=system",
        "tolerations[0].operator=Exists",
        "priorityClassName=system-cluster-critical",
        "podLabels.team=platform",
        "podAnnotations.note=here",
        "resources.limits.memory=1Gi",
    ],
    "workload identity": [
        "serviceAccount.name=operator",
        r"serviceAccount.annotations.iam\.gke\.io/gcp-service-account=op@p.iam.gserviceaccount.com",
    ],
    "nothing optional": ["networkPolicy.create=false", "userRoles.create=false", "crds.keep=false"],
}

REFUSED = {
    "image.registry=registry.example": "image.registry",
    "image.pullPolicy=Sometimes": "image.pullPolicy",
    "image.name=tunewright": "name",
    "namespaces={Team_A}": "namespaces.0",
    "namespaces={a,a}": "namespaces",
    "operator.workers=0": "operator.workers",
    "operator.resyncSeconds=1": "operator.resyncSeconds",
    "operator.logLevel=LOUD": "operator.logLevel",
    "workloads.trainImage=": "workloads.trainImage",
    "serviceAccount.name=": "serviceAccount.name",
    "replicas=2": "replicas",
}


def render(*values: str) -> list[Object]:
    """What `helm template` makes of these `--set` values."""
    given = [part for value in values for part in ("--set", value)]
    return documents(helm("template", "tunewright", CHART, "--namespace", SYSTEM, *given))


def documents(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def of(found: list[Object], kind: str) -> list[Object]:
    return [one for one in found if one["kind"] == kind]


def operator_container(found: list[Object]) -> Object:
    (deployment,) = of(found, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def environment(found: list[Object]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in operator_container(found)["env"]}


def overlay(cluster: Cluster, name: str) -> list[Object]:
    return documents(cluster.kubectl("kustomize", KUSTOMIZE / name))


@pytest.fixture(scope="module")
def places(cluster: Cluster) -> Iterator[None]:
    """The namespaces that the rendered objects name."""
    made = []
    for name in (SYSTEM, "team-a", "team-b"):
        if not cluster.exists(f"/api/v1/namespaces/{name}"):
            cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            made.append(name)
    yield
    for name in made:
        if name != SYSTEM:  # other tests of this folder install into it
            cluster.delete_namespace(name)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_helm_finds_nothing_to_say_about_the_chart(values: list[str]) -> None:
    given = [part for value in values for part in ("--set", value)]
    printed = helm("lint", "--strict", CHART, *given)
    assert "0 chart(s) failed" in printed
    assert "[WARNING]" not in printed


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_an_api_server_takes_all_that_the_chart_renders(cluster: Cluster, values: list[str]) -> None:
    found = render(*values)
    text = "".join(f"---\n{json.dumps(one)}\n" for one in found)
    tried = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", stdin=text
    )
    assert len(tried.splitlines()) == len(found)


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_that_cannot_work_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(HelmError) as refusal:
        render(value)
    assert REFUSED[value].replace(".0", "/0").split(".")[-1] in str(refusal.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_container_is_restricted_and_every_object_says_whose_it_is(variant: str) -> None:
    found = render(*VARIANTS[variant])
    container = operator_container(found)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for one in found:
        if one["kind"] != "CustomResourceDefinition":
            assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "tunewright", one["kind"]


def test_the_chart_and_the_cluster_wide_overlay_install_the_same_operator(cluster: Cluster) -> None:
    chart, kustomized = render(), overlay(cluster, "cluster-wide")
    (ours,) = [one for one in of(chart, "ClusterRole") if one["metadata"]["name"] == "tunewright"]
    (theirs,) = [one for one in of(kustomized, "ClusterRole") if "aggregat" not in json.dumps(one)]
    assert ours["rules"] == theirs["rules"] == rbac.rules(rbac.RIGHTS + rbac.CLUSTER)
    left, right = operator_container(chart), operator_container(kustomized)
    for part in (
        "image",
        "command",
        "ports",
        "readinessProbe",
        "livenessProbe",
        "resources",
        "securityContext",
    ):
        assert left[part] == right[part], part
    assert {one["metadata"]["name"] for one in of(chart, "CustomResourceDefinition")} == {
        one["metadata"]["name"] for one in of(kustomized, "CustomResourceDefinition")
    }


@pytest.mark.parametrize("how", ["chart", "overlay"])
def test_a_namespaced_operator_gets_no_right_outside_of_its_namespaces(cluster: Cluster, how: str) -> None:
    chart = how == "chart"
    found = render(*VARIANTS["namespaced"]) if chart else overlay(cluster, "namespaced")
    assert not of(found, "ClusterRole")
    assert not of(found, "ClusterRoleBinding")
    assert not of(found, "CustomResourceDefinition")
    for role in of(found, "Role"):
        assert role["rules"] == rbac.rules(rbac.RIGHTS)
    if chart:
        for kind in ("Role", "RoleBinding"):
            assert [one["metadata"]["namespace"] for one in of(found, kind)] == ["team-a", "team-b"]
        assert environment(found)["TUNEWRIGHT_NAMESPACES"] == "team-a,team-b"
        for binding in of(found, "RoleBinding"):
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": "tunewright-operator", "namespace": SYSTEM}
            ]


def test_an_operator_of_the_chart_starts_with_the_defaults_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment(render()).items():
        monkeypatch.setenv(name, value)
    assert options.read([]) == options.Options()


def test_every_value_of_the_chart_reaches_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "namespaces": "{team-a}",
        "image.registry": "registry.example/",
        "operator.workers": "3",
        "operator.resyncSeconds": "60",
        "operator.logLevel": "DEBUG",
        "workloads.pullPolicy": "Always",
        "workloads.trainImage": "t:1",
        "workloads.trainGpuImage": "g:1",
        "workloads.serveCpuImage": "sc:1",
        "workloads.serveTpuImage": "st:1",
        "workloads.serveGpuImage": "sg:1",
        "workloads.scratchClass": "ssd",
        "workloads.endpointPicker": "epp",
        "workloads.hpaMetric": "waiting",
        "podMonitor.labels.release": "prom",
        "podMonitor.labels.team": "a",
    }
    for name, value in environment(render(*(f"{k}={v}" for k, v in values.items()))).items():
        monkeypatch.setenv(name, value)
    assert options.read([]) == options.Options(
        namespaces=("team-a",),
        workers=3,
        resync=60.0,
        level="DEBUG",
        plan=Settings(
            registry="registry.example/",
            pull_policy="Always",
            train_image="t:1",
            gpu_image="g:1",
            serve_images={"cpu": "sc:1", "tpu": "st:1", "gpu": "sg:1"},
            scratch_class="ssd",
            endpoint_picker="epp",
            hpa_metric="waiting",
            pod_monitor_labels={"release": "prom", "team": "a"},
        ),
    )


def test_the_crds_of_the_chart_are_those_of_the_models_to_the_digit() -> None:
    kept = {one["metadata"]["name"]: one for one in of(render(), "CustomResourceDefinition")}
    assert len(kept) == 2
    for path in sorted((ROOT / "manifests/crds").glob("*.yaml")):
        for wanted in documents(path.read_text()):
            if wanted["kind"] == "CustomResourceDefinition":
                found = kept[wanted["metadata"]["name"]]
                assert found["metadata"].pop("annotations")["helm.sh/resource-policy"] == "keep"
                assert found == {**wanted, "metadata": found["metadata"]}


def test_crds_that_are_not_kept_carry_no_policy() -> None:
    for one in of(render("crds.keep=false"), "CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in one["metadata"].get("annotations", {})


def test_pod_monitoring_is_rendered_where_it_is_asked_for() -> None:
    (found,) = of(render("podMonitoring.create=true"), "PodMonitoring")
    assert found["spec"]["endpoints"] == [{"port": "metrics", "interval": "30s"}]
    assert not of(render(), "PodMonitoring")


def test_monitoring_is_made_only_when_asked_for() -> None:
    kinds = {"PodMonitoring", "PodMonitor", "PrometheusRule", "Rules"}
    assert not {one["kind"] for one in render()} & kinds
    found = render(
        "podMonitoring.create=true", "podMonitor.create=true", "podMonitor.labels.release=prom",
        "alerts.create=true", "dashboard.create=true",
    )  # fmt: skip
    assert {one["kind"] for one in found} & kinds == {"PodMonitoring", "PodMonitor", "PrometheusRule"}
    (monitor,), (rules,) = of(found, "PodMonitor"), of(found, "PrometheusRule")
    (deployment,) = of(found, "Deployment")
    pod = deployment["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    written = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    assert rules["spec"] == written  # the templates of Prometheus inside came through Helm's untouched
    (board,) = [one for one in of(found, "ConfigMap") if "tunewright.json" in one["data"]]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["tunewright.json"])["uid"] == "tunewright"


def test_managed_prometheus_gets_the_same_rules_as_its_own_kind() -> None:
    found = render("alerts.create=true", "alerts.kind=Rules")
    (rules,) = of(found, "Rules")
    assert rules["apiVersion"] == "monitoring.googleapis.com/v1"
    assert rules["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
