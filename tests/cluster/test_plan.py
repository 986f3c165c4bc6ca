"""The API server takes every planned object as it is, and Pod Security `restricted` every planned pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Plan, Settings

from .api import Cluster

FOUR_HOSTS = {"spec.accelerator": {"type": "v5p", "topology": "2x2x4"}}
EVALUATED = {"spec.evaluation": {}, "spec.dataset.validation": ["pvc://rows/v.jsonl"]}
FULL = {
    "serviceAccountName": "trainer",
    "queue": {"name": "q"},
    "podTemplate": {
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "env": [
            {"name": "A"},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
        ],
        "resources": {"requests": {"memory": "3Gi", "cpu": 1}, "limits": {"memory": "4Gi", "cpu": 2}},
    },
}
LONG = "a" * 63

PLANS: dict[str, Plan] = {
    "tpu": plan.job(specs.job(EVALUATED, **FULL)),
    "token": plan.job(specs.job({"spec.model.tokenSecretRef": {"name": "s"}})),
    "jobset": plan.job(specs.job({**FOUR_HOSTS, "metadata.name": LONG})),
    "indexed": plan.job(specs.job({**FOUR_HOSTS, "metadata.name": LONG}), Settings(jobset=False)),
    "cpu": plan.job(specs.job({**specs.TINY, "metadata.name": "1st"}, suspend=True)),
    "gpu": plan.job(specs.job(specs.GPU)),
    "scratch": plan.job(specs.job(), Settings(scratch_class="fast")),
    "serve-tpu": plan.endpoint(
        specs.endpoint(
            {"metadata.name": LONG}, benchmark={}, compileCache={"pvc": "c"}, autoscaling={"max": 3}
        )
    ),
    "serve-green": plan.endpoint(specs.endpoint(rollout={"strategy": "blueGreen"}), digest="d"),
    "serve-cpu": plan.endpoint(specs.endpoint({"spec.accelerator": {"type": "cpu"}}, drainSeconds=0)),
    "serve-gpu": plan.endpoint(specs.endpoint({"spec.accelerator": {"type": "h100", "count": 2}})),
}

PLURALS = {
    "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts", "Service": "services", "Role": "roles",
    "RoleBinding": "rolebindings", "NetworkPolicy": "networkpolicies", "Job": "jobs", "JobSet": "jobsets",
    "Deployment": "deployments", "PodDisruptionBudget": "poddisruptionbudgets",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
}  # fmt: skip


@pytest.fixture(scope="module")
def restricted(batch: Cluster):
    """A namespace that refuses every pod that is not restricted."""
    name = batch.create_namespace("plan", {"pod-security.kubernetes.io/enforce": "restricted"})
    # What the pods name; the API server asks for accounts when a pod is created.
    for account in {a for made in PLANS.values() for a in accounts(made)}:
        batch.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": account}})
    yield name
    batch.delete_namespace(name)


def accounts(made: Plan) -> set[str]:
    found = {stage.template["spec"].get("serviceAccountName") for stage in made.stages}
    return {name for name in found if name}


def moved(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The same object in another namespace."""
    found = copy.deepcopy(manifest)
    found["metadata"]["namespace"] = namespace
    for subject in found.get("subjects", []):
        subject["namespace"] = namespace
    return found


@pytest.mark.parametrize("name", PLANS)
def test_every_object_is_taken_with_strict_field_validation(
    batch: Cluster, restricted: str, name: str
) -> None:
    for manifest in PLANS[name].manifests():
        found = moved(manifest, restricted)
        group = found["apiVersion"]
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        path = f"{root}/namespaces/{restricted}/{PLURALS[found['kind']]}/{found['metadata']['name']}"
        query = "?fieldManager=tunewright-tests&force=true&dryRun=All&fieldValidation=Strict"
        taken = batch.request("PATCH", path + query, found, content_type="application/apply-patch+yaml")
        assert taken["metadata"]["labels"].items() >= found["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("name", "stage"), [(name, stage.name) for name, made in PLANS.items() for stage in made.stages]
)
def test_every_pod_is_restricted(batch: Cluster, restricted: str, name: str, stage: str) -> None:
    template = copy.deepcopy(PLANS[name].stage(stage).template)
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "p"}
    path = f"/api/v1/namespaces/{restricted}/pods?dryRun=All&fieldValidation=Strict"
    assert batch.request("POST", path, pod)["metadata"]["name"] == "p"


def test_a_queued_job_is_suspended_until_kueue_admits_it(batch: Cluster, restricted: str) -> None:
    """Kueue's own webhook sees the planned Job and leaves its suspend as it is."""
    job = moved(PLANS["tpu"].stage("train").workload, restricted)
    path = f"/apis/batch/v1/namespaces/{restricted}/jobs?dryRun=All"
    assert batch.request("POST", path, job)["spec"]["suspend"] is True
