"""The rights, the kustomize overlays and the chart: one source, exactly what is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tunewright_operator import api, plan
from tunewright_operator.reconcile import rbac, resources

ROOT = Path(__file__).parents[3]


def test_the_written_files_are_what_the_table_says() -> None:
    assert rbac.stale() == [], "run `python -m tunewright_operator.reconcile.rbac`"


def granted() -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for right in rbac.RIGHTS:
        for name in right.resources:
            found.setdefault((right.group, name), set()).update(right.verbs)
    return found


def test_no_right_has_a_wildcard_and_none_reaches_secrets_or_pods_themselves() -> None:
    for right in (*rbac.RIGHTS, *rbac.CLUSTER):
        assert "*" not in (right.group, *right.resources, *right.verbs)
        assert not {"secrets", "pods/exec", "pods/log", "nodes"} & set(right.resources)
    assert not {"create", "patch", "delete", "update"} & granted()["", "pods"]


def test_every_kind_that_is_watched_can_be_listed_and_watched() -> None:
    for resource in resources.WATCHED:
        assert {"get", "list", "watch"} <= granted()[resource.group, resource.plural], resource.plural


def planned() -> list[dict[str, Any]]:
    """What every shape of plan makes."""
    settings = plan.Settings(pod_monitoring=True, endpoint_picker="picker")
    made = []
    base: dict[str, Any] = {
        "model": {"name": "gemma-4-31b"},
        "dataset": {"train": ["gs://acme/a.jsonl"], "validation": ["gs://acme/b.jsonl"]},
        "output": {"uri": "gs://acme/out"},
        "evaluation": {"maxEvalLoss": 1.0},
    }
    for accelerator in ({"type": "v5p", "topology": "2x2x1"}, {"type": "v5p", "topology": "2x2x2"}):
        for jobset in (True, False):
            body = {**base, "accelerator": accelerator}
            job = api.FineTuneJob.model_validate({"metadata": {"name": "a", "namespace": "b"}, "spec": body})
            own = plan.Settings(jobset=jobset)
            made += list(plan.job(job, own).manifests())
    for spec in (
        {"accelerator": {"type": "cpu"}},
        {"accelerator": {"type": "v6e", "topology": "2x4"}, "autoscaling": {"max": 3}, "benchmark": {}},
    ):
        body = {"model": {"uri": "gs://acme/m"}, **spec}
        end = api.ServeEndpoint.model_validate({"metadata": {"name": "a", "namespace": "b"}, "spec": body})
        for own in (settings, plan.Settings(pod_monitor=True)):
            made += list(plan.endpoint(end, own).manifests())
    return made


@pytest.mark.parametrize("manifest", planned(), ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_everything_that_is_planned_may_be_made(manifest: dict[str, Any]) -> None:
    resource = resources.of(manifest)
    assert {"get", "create"} <= granted()[resource.group, resource.plural]


def test_every_verb_of_the_table_is_used_by_some_call() -> None:
    """A right that no line of the operator could use is one too many."""
    kinds = {(r.group, r.plural) for r in resources.RESOURCES}
    for (group, name), verbs in granted().items():
        assert (group, name.removesuffix("/status")) in kinds
        if name.endswith("/status"):
            assert verbs == {"patch"}


def chart_values() -> set[str]:
    text = "".join(p.read_text() for p in (ROOT / "charts/tunewright/templates").iterdir())
    return set(re.findall(r"\.Values\.([a-zA-Z]+)", text))


def test_every_value_of_the_chart_is_used_and_in_its_schema() -> None:
    values = yaml.safe_load((ROOT / "charts/tunewright/values.yaml").read_text())
    schema = yaml.safe_load((ROOT / "charts/tunewright/values.schema.json").read_text())
    assert set(values) == chart_values()
    assert set(values) <= set(schema["properties"])


def test_every_setting_of_the_chart_is_one_that_the_operator_reads() -> None:
    from tunewright_operator.reconcile import options

    text = (ROOT / "charts/tunewright/templates/deployment.yaml").read_text()
    source = Path(options.__file__).read_text()
    for name in re.findall(r"TUNEWRIGHT_([A-Z_]+)", text):
        flag = name.lower().replace("_", "-")
        known = f'flag("{flag}"' in source or re.fullmatch(r"serve-(cpu|tpu|gpu)-image", flag)
        assert known, f"no option reads TUNEWRIGHT_{name}"
