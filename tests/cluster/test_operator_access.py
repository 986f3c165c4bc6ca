# ruff: noqa: F811  (fixtures are imported by name)
"""The rights as shipped, asked from the API server; and both ways to install, judged by it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tunewright_operator.reconcile import rbac

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
    ("", "pods", "deletecollection"),
    ("", "pods/status", "patch"),
    ("", "pods/ephemeralcontainers", "patch"),
    ("", "pods/exec", "create"),
    ("", "pods/attach", "create"),
    ("", "pods/portforward", "create"),
    ("", "pods/proxy", "get"),
    ("", "services/proxy", "get"),
    ("", "pods/log", "get"),
    ("", "pods/eviction", "create"),
    ("", "nodes", "get"),
    ("", "nodes", "list"),
    ("", "nodes", "patch"),
    ("", "nodes/proxy", "get"),
    ("", "persistentvolumes", "create"),
    ("", "resourcequotas", "patch"),
    ("", "configmaps", "deletecollection"),
    ("", "events", "delete"),
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
    ("batch", "jobs/status", "patch"),
    ("batch", "cronjobs", "create"),
    ("apps", "deployments/scale", "patch"),
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
    ("tunewright.dev", "serveendpoints", "create"),
    ("tunewright.dev", "serveendpoints/scale", "patch"),
    ("jobset.x-k8s.io", "jobsets", "patch"),
    ("jobset.x-k8s.io", "jobsets/status", "patch"),
    ("kueue.x-k8s.io", "workloads", "get"),
    ("kueue.x-k8s.io", "workloads", "patch"),
    ("networking.k8s.io", "networkpolicies", "delete"),
    ("certificates.k8s.io", "certificatesigningrequests", "create"),
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("coordination.k8s.io", "leases", "create"),
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


Held = set[tuple[str, str, str, str]]
"""Rights as (group, resource, verb, name of the one object or *)."""


def held(cluster: Cluster, who: str, namespace: str) -> Held:
    """Every right that an account (`namespace/name`) has in a namespace, from the authorizer itself."""
    token = cluster.service_account_token(*who.split("/"))
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = cluster.request("POST", path, asked, token=token)["status"]
    if status["incomplete"]:
        pytest.skip("this cluster's authorizer cannot list all the rights of an account")
    return {
        (group, resource, verb, name)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ["*"]
    }


def everybodys(cluster: Cluster, namespace: str) -> Held:
    """What every account may do, one without any role included: ask about itself."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if not cluster.exists(f"{path}/nobody"):
        cluster.request("POST", path, {"metadata": {"name": "nobody"}})
    return held(cluster, f"{namespace}/nobody", namespace)


def stated(rights: tuple[rbac.Right, ...]) -> Held:
    """The rights of our table."""
    return {
        (one.group, resource, verb, "*") for one in rights for resource in one.resources for verb in one.verbs
    }


def test_the_operator_holds_the_rights_of_the_table_and_no_other(space: Space, cluster: Cluster) -> None:
    found = held(cluster, f"{SYSTEM}/tunewright-operator", space.namespace)
    assert found - everybodys(cluster, space.namespace) == stated(rbac.RIGHTS + rbac.CLUSTER)


def test_no_account_of_a_workload_holds_more_than_its_one_patch(space: Space, cluster: Cluster) -> None:
    space.job()
    space.pod("train")
    space.endpoint("web", model={"uri": "gs://acme/models/one"}, benchmark={})
    server = space.pod("serve")
    common = everybodys(cluster, space.namespace)
    for account, target in (("bot-job", "bot-progress"), ("web-benchmark", "web-benchmark")):
        found = held(cluster, f"{space.namespace}/{account}", space.namespace)
        assert found - common == {("", "configmaps", "patch", target)}, account
        assert not held(cluster, f"{space.namespace}/{account}", SYSTEM) - common, account
    (pod,) = [one for one in space.pods("serve") if one["metadata"]["name"] == server]
    assert pod["spec"]["serviceAccountName"] == "default"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not held(cluster, f"{space.namespace}/default", space.namespace) - common


@pytest.mark.parametrize(("group", "resource", "verb"), DENIED, ids=[f"{v} {r}" for _, r, v in DENIED])
def test_no_workload_may(group: str, resource: str, verb: str, workloads: Space, cluster: Cluster) -> None:
    for account in ("bot-job", "web-benchmark", "default"):
        who = f"{workloads.namespace}/{account}"
        assert not may(cluster, who, group, resource, verb, workloads.namespace), account


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


@pytest.fixture(scope="module")
def workloads(operator: Operator, cluster: Cluster) -> Iterator[Space]:
    """A namespace with the accounts of a job and of an endpoint's benchmark."""
    here = Space(cluster, cluster.create_namespace("accounts"))
    here.job()
    here.endpoint("web", model={"uri": "gs://acme/models/one"}, benchmark={})
    here.pod("train")
    here.pod("serve")
    yield here
    cluster.delete_namespace(here.namespace)


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
        common = everybodys(cluster, own)
        assert held(cluster, who, own) - common == stated(rbac.RIGHTS)
        assert not held(cluster, who, namespace) - common
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
