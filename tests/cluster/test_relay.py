"""A job's own account writes its progress to the real API server, and can do nothing else there."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import progress
from tunewright_workloads import relay

from .api import ApiError, Cluster

TARGET = progress.config_map("support-bot")


@pytest.fixture
def token(batch: Cluster, batch_namespace: str) -> str:
    """What the relay's projected volume would hold."""
    made = plan.job(specs.job())
    for manifest in made.shared:
        found = copy.deepcopy(manifest)
        found["metadata"]["namespace"] = batch_namespace
        for subject in found.get("subjects", []):
            subject["namespace"] = batch_namespace
        batch.apply(found)
    account = made.stage("train").template["spec"]["serviceAccountName"]
    return batch.service_account_token(batch_namespace, account)


def test_the_record_arrives_and_applying_the_plan_again_keeps_it(
    batch: Cluster, batch_namespace: str, token: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(token)
    shutil.copy(batch.ca, tmp_path / "ca.crt")
    patch = relay.patcher(batch.url, batch_namespace, TARGET, progress.KEY, tmp_path)
    patch('{"step":1}')
    patch('{"step":2}')
    path = f"/api/v1/namespaces/{batch_namespace}/configmaps/{TARGET}"
    assert batch.request("GET", path)["data"] == {progress.KEY: '{"step":2}'}
    (again,) = [m for m in plan.job(specs.job()).shared if m["kind"] == "ConfigMap"]
    batch.apply({**again, "metadata": {**again["metadata"], "namespace": batch_namespace}})
    assert batch.request("GET", path)["data"] == {progress.KEY: '{"step":2}'}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/api/v1/namespaces/{ns}/configmaps/kube-root-ca.crt", {"data": {"a": "b"}}),
        ("GET", "/api/v1/namespaces/{ns}/configmaps/{target}", None),
        ("GET", "/api/v1/namespaces/{ns}/configmaps", None),
        ("DELETE", "/api/v1/namespaces/{ns}/configmaps/{target}", None),
        ("GET", "/api/v1/namespaces/{ns}/secrets", None),
        ("GET", "/api/v1/namespaces/{ns}/pods", None),
        ("POST", "/api/v1/namespaces/{ns}/pods", {"metadata": {"name": "p"}}),
        ("GET", "/apis/tunewright.dev/v1alpha1/namespaces/{ns}/finetunejobs", None),
        ("PATCH", "/api/v1/namespaces/default/configmaps/{target}", {"data": {"a": "b"}}),
        ("GET", "/api/v1/nodes", None),
    ],
)
def test_everything_else_is_denied(
    batch: Cluster, batch_namespace: str, token: str, method: str, path: str, body: dict | None
) -> None:
    where = path.format(ns=batch_namespace, target=TARGET)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as caught:
        batch.request(method, where, body, content_type=kind, token=token)
    assert caught.value.status == 403
