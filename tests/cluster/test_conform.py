"""kubeconform -strict on all that we render, show and plan, with the schemas of the real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tunewright_operator import api, plan
from tunewright_operator.plan import Settings

from . import build, conform
from .api import Cluster, Object
from .conform import ConformError
from .test_install import KUSTOMIZE, ROOT, VARIANTS, overlay, render
from .test_plan import PLANS

EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
JOBSET = "chart/crds/jobset.x-k8s.io_jobsets.yaml"


@pytest.fixture(scope="session")
def schemas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of schemas: what the API server has, our CRDs, JobSet's and those of monitoring."""
    folder = tmp_path_factory.mktemp("schemas")
    conform.write_builtin(cluster, folder)
    crds = [path for path in (ROOT / "manifests/crds").glob("*.yaml") if path.stem != "kustomization"]
    crds.append(build.folder("jobset") / JOBSET)
    crds.append(Path(__file__).parent / "foreign.yaml")
    conform.write_crds(cluster, folder, crds)
    return folder


@pytest.mark.parametrize("name", sorted(path.name for path in KUSTOMIZE.iterdir()))
def test_an_overlay_conforms(name: str, schemas: Path, cluster: Cluster) -> None:
    found = overlay(cluster, name)
    assert conform.check(schemas, found) == len(found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_conforms(variant: str, schemas: Path) -> None:
    found = render(*VARIANTS[variant])
    assert conform.check(schemas, found) == len(found)


@pytest.mark.parametrize("kind", ["PrometheusRule", "Rules"])
def test_monitoring_of_the_chart_conforms(kind: str, schemas: Path) -> None:
    found = render(
        "podMonitoring.create=true", "podMonitor.create=true", "alerts.create=true", f"alerts.kind={kind}",
        "dashboard.create=true",
    )  # fmt: skip
    assert {"PodMonitoring", "PodMonitor", kind} <= {one["kind"] for one in found}
    assert conform.check(schemas, found) == len(found)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_conforms(path: Path, schemas: Path) -> None:
    assert conform.check_text(schemas, path.read_text()) > 0


def children(path: Path, settings: Settings) -> list[Object]:
    """Everything that the operator would make for the resources of a file."""
    found = [one for one in yaml.safe_load_all(path.read_text()) if one]
    jobs = {
        one["metadata"]["name"]: api.parse(api.FineTuneJob, one)
        for one in found
        if one["kind"] == "FineTuneJob"
    }
    made = [plan.job(job, settings) for job in jobs.values()]
    for one in found:
        if one["kind"] == "ServeEndpoint":
            reference = one["spec"]["model"].get("fineTuneJobRef")
            job = jobs[reference["name"]] if reference else None
            made.append(plan.endpoint(api.parse(api.ServeEndpoint, one), settings, job))
    return [manifest for one in made for manifest in one.manifests()]


CLUSTERS = {
    "with every CRD": Settings(pod_monitoring=True, endpoint_picker="picker"),
    "with the prometheus-operator": Settings(pod_monitor=True, pod_monitor_labels={"release": "prom"}),
    "without any": Settings(jobset=False),
}


@pytest.mark.parametrize("settings", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_child_of_an_example_conforms(path: Path, settings: Settings, schemas: Path) -> None:
    found = children(path, settings)
    assert conform.check(schemas, found) == len(found) > 0


def test_every_child_of_unusual_plans_conforms(schemas: Path) -> None:
    found = [manifest for made in PLANS.values() for manifest in made.manifests()]
    assert conform.check(schemas, found) == len(found)
    assert {"JobSet", "HorizontalPodAutoscaler", "NetworkPolicy"} <= {one["kind"] for one in found}


WRONG = {
    "a misspelt field": ("spec:\n  replica: 1", "replica"),
    "a wrong type": ("spec:\n  replicas: many", "replicas"),
    "a key that is there twice": ("spec:\n  replicas: 1\n  replicas: 2", "replicas"),
}


@pytest.mark.parametrize("kind", ["Deployment", "ServeEndpoint"])
@pytest.mark.parametrize(("body", "word"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found(kind: str, body: str, word: str, schemas: Path) -> None:
    version = "apps/v1" if kind == "Deployment" else "tunewright.dev/v1alpha1"
    with pytest.raises(ConformError, match=word):
        conform.check_text(schemas, f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n{body}\n")


def test_a_kind_without_a_schema_is_no_pass(schemas: Path) -> None:
    unknown = {"apiVersion": "tunewright.dev/v1alpha1", "kind": "Other", "metadata": {"name": "a"}}
    with pytest.raises(ConformError, match="Other"):
        conform.check(schemas, [unknown])
