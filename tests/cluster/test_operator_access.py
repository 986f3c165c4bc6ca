# ruff: noqa: F811  (fixtures are imported by name)
"""The rights as shipped, asked from the API server; and both ways to install, judged by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from . import build, pods
from .api import ApiError, Cluster
from .operating import ROOT, SYSTEM, Operator, Space, install, operator, space  # noqa: F401

DENIED = [
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "secrets", "watch"),
    ("", "secrets", "create"),
    ("", "pods", "create"),
    ("", "pods", "delete"),
    ("", "pods", "patch"),
    ("", "pods/exec", "create"),
    ("", "pods/log", "get"),
    ("", "pods/eviction", "create"),
    ("", "nodes", "get"),
    ("", "nodes", "list"),
    ("", "namespaces", "create"),
    ("", "namespaces", "delete"),
    ("", "persistentvolumeclaims", "list"),
    ("", "persistentvolumeclaims", "create"),
    ("", "persistentvolumeclaims", "delete"),
    ("", "serviceaccounts/token", "create"),
    ("", "serviceaccounts", "delete"),
    ("", "serviceaccounts", "impersonate"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "update"),
    ("batch", "cronjobs", "create"),
    ("apps", "daemonsets", "create"),
    ("apps", "statefulsets", "create"),
    ("rbac.authorization.k8s.io", "roles", "escalate"),
    ("rbac.authorization.k8s.io", "roles", "bind"),
    ("rbac.authorization.k8s.io", "roles", "patch"),
    ("rbac.authorization.k8s.io", "roles", "delete"),
    ("rbac.authorization.k8s.io", "clusterroles", "create"),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "create"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "create"),
    ("tunewright.dev", "finetunejobs", "create"),
    ("tunewright.dev", "finetunejobs", "patch"),
    ("tunewright.dev", "finetunejobs", "update"),
    ("tunewright.dev", "serveendpoints", "delete"),
    ("tunewright.dev", "serveendpoints", "patch"),
    ("kueue.x-k8s.io", "workloads", "patch"),
]

ALLOWED = [
    ("tunewright.dev", "finetunejobs", "watch"),
    ("tunewright.dev", "finetunejobs/status", "patch"),
    ("batch", "jobs", "create"),
    ("apps", "deployments", "patch"),
    ("", "pods", "watch"),
]


def may(cluster: Cluster, who: str, group: str, resource: str, verb: str, namespace: str) -> bool:
    """What the API server's authorizer says about a service account (`namespace/name`)."""
    space, name = who.split("/")
    kind, _, sub = resource.partition("/")
    what = {"group": group, "resource": kind, "subresource": sub, "verb": verb, "namespace": namespace}
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{space}:{name}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{space}", "system:authenticated"],
            "resourceAttributes": what,
        },
    }
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", asked)
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize(("group", "resource", "verb"), DENIED, ids=[f"{v} {r}" for _, r, v in DENIED])
def test_the_operator_may_not(group: str, resource: str, verb: str, space: Space, cluster: Cluster) -> None:
    assert not may(cluster, f"{SYSTEM}/tunewright-operator", group, resource, verb, space.namespace)


@pytest.mark.parametrize(("group", "resource", "verb"), ALLOWED, ids=[f"{v} {r}" for _, r, v in ALLOWED])
def test_the_operator_may(group: str, resource: str, verb: str, space: Space, cluster: Cluster) -> None:
    assert may(cluster, f"{SYSTEM}/tunewright-operator", group, resource, verb, space.namespace)


def test_a_jobs_own_account_may_patch_its_progress_and_nothing_else(space: Space, cluster: Cluster) -> None:
    space.job()
    space.job("other", output={"uri": "gs://acme/models/other"})
    space.pod("train")
    cluster.wait_for(lambda: "other-progress" in space.names("rolebindings"), "both jobs", 30)
    token = cluster.service_account_token(space.namespace, "bot-job")
    base = f"/api/v1/namespaces/{space.namespace}/configmaps"
    change = {"data": {"progress.json": '{"stage": "train", "step": 1}'}}
    merge = "application/merge-patch+json"
    cluster.request("PATCH", f"{base}/bot-progress", change, content_type=merge, token=token)
    refused = [
        ("PATCH", f"{base}/bot-train", change),
        ("PATCH", f"{base}/other-progress", change),
        ("GET", f"{base}/bot-progress", None),
        ("GET", base, None),
        ("DELETE", f"{base}/bot-progress", None),
        ("POST", base, {"metadata": {"name": "mine"}}),
        ("GET", f"/api/v1/namespaces/{space.namespace}/secrets", None),
        ("GET", f"/api/v1/namespaces/{space.namespace}/pods", None),
        ("GET", space.path("finetunejobs", "bot"), None),
        ("PATCH", space.path("finetunejobs", "bot") + "/status", {"status": {"phase": "Succeeded"}}),
    ]
    for method, path, body in refused:
        with pytest.raises(ApiError) as refusal:
            cluster.request(
                method,
                path,
                body,
                token=token,
                content_type=merge if method == "PATCH" else "application/json",
            )
        assert refusal.value.status == 403, (method, path)


def test_a_namespaced_operator_serves_its_namespace_and_has_no_right_elsewhere(
    cluster: Cluster, namespace: str, operator: Operator
) -> None:
    own = cluster.create_namespace("own")
    try:
        install(cluster, "namespaced", own)
        who = f"{own}/tunewright-operator"
        for group, resource, verb in ALLOWED:
            assert may(cluster, who, group, resource, verb, own)
            assert not may(cluster, who, group, resource, verb, namespace)
        for group, resource, verb in DENIED:
            assert not may(cluster, who, group, resource, verb, own)
        operator.kill()  # two would do the same work, and this test is about what one alone can do
        with Operator(cluster, "--namespaces", own, account=who, name="namespaced"):
            here = Space(cluster, own)
            here.job(output={"uri": "gs://acme/models/bot", "merge": False})
            pods.finish(cluster, own, here.pod("train"))
            here.phase("Succeeded")
    finally:
        if not operator.process.alive:
            operator.start()
        cluster.delete_namespace(own)


def helm(*arguments: str | Path) -> str:
    done = subprocess.run(
        [build.binary("helm"), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("overlay", ["cluster-wide", "namespaced"])
def test_the_overlay_is_what_the_api_server_takes(overlay: str, cluster: Cluster, namespace: str) -> None:
    text = cluster.kubectl("kustomize", ROOT / "manifests/overlays" / overlay)
    for one in yaml.safe_load_all(text):
        one["metadata"].pop("namespace", None)
        cluster.kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts",
            "-n", namespace, "-f", "-", stdin=yaml.safe_dump(one),
        )  # fmt: skip


def test_the_operators_own_pod_passes_the_strictest_pod_security(cluster: Cluster) -> None:
    strict = cluster.create_namespace("strict", {"pod-security.kubernetes.io/enforce": "restricted"})
    try:
        for text in (
            helm("template", "release", ROOT / "charts/tunewright", "--set", "serviceAccount.name=default"),
            cluster.kubectl("kustomize", ROOT / "manifests/overlays/namespaced"),
        ):
            deployment = next(o for o in yaml.safe_load_all(text) if o and o["kind"] == "Deployment")
            template = deployment["spec"]["template"]
            template["spec"]["serviceAccountName"] = "default"
            pod = {
                "metadata": {"generateName": "operator-", "labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            }
            cluster.request("POST", f"/api/v1/namespaces/{strict}/pods", pod)
    finally:
        cluster.delete_namespace(strict)
