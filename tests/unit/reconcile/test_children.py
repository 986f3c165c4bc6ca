"""Children: owned, found by uid, made once or kept as planned."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.children import APPLIED, Children, NameTakenError, NotYetError, adopt
from tunewright_operator.reconcile.client import ApiError
from tunewright_operator.reconcile.resources import UID_LABEL, Resource

Object = dict[str, Any]
OWNER = {"name": "bot", "namespace": "team", "uid": "u1"}


class Server:
    """Keeps objects as an API server would, and notes what it was asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.asked: list[str] = []
        self.version = 0

    def put(self, body: Object) -> Object:
        self.version += 1
        body = copy.deepcopy(body)
        meta = body["metadata"]
        known = self.objects.get((body["kind"], meta["name"]))
        meta.setdefault("uid", f"uid-{meta['name']}" if known is None else known["metadata"]["uid"])
        before = known and {k: v for k, v in known.items() if k != "metadata"}
        changed = before != {k: v for k, v in body.items() if k != "metadata"}
        meta["generation"] = (known["metadata"]["generation"] if known else 0) + (1 if changed else 0)
        meta["resourceVersion"] = str(self.version)
        self.objects[body["kind"], meta["name"]] = body
        return copy.deepcopy(body)

    async def create(self, resource: Resource, _: str, body: Object) -> Object:
        self.asked.append(f"create {body['kind']} {body['metadata']['name']}")
        if (body["kind"], body["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", "exists")
        return self.put(body)

    async def apply(self, resource: Resource, _: str, body: Object) -> Object:
        self.asked.append(f"apply {body['kind']} {body['metadata']['name']}")
        return self.put(body)

    async def get(self, resource: Resource, _: str, name: str) -> Object | None:
        self.asked.append(f"get {resource.kind} {name}")
        return copy.deepcopy(self.objects.get((resource.kind, name)))


def run(made: Any) -> Any:
    return asyncio.run(made)


def manifest(kind: str = "Deployment", name: str = "bot-serve", **spec: Any) -> Object:
    group = {"Deployment": "apps/v1", "Job": "batch/v1", "Role": "rbac.authorization.k8s.io/v1",
             "RoleBinding": "rbac.authorization.k8s.io/v1", "PodDisruptionBudget": "policy/v1"}  # fmt: skip
    return {
        "apiVersion": group.get(kind, "v1"),
        "kind": kind,
        "metadata": {"name": name, "labels": {"a": "b"}},
        "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}}, **spec},
    }


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def children(server: Server) -> Children:
    return Children(server, Cache())  # type: ignore[arg-type]


def test_a_child_is_owned_and_every_template_in_it_carries_the_uid() -> None:
    inner = {"metadata": {"labels": {}}, "spec": {"template": {"spec": {}}}}
    body = manifest("JobSet") | {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "spec": {"replicatedJobs": [{"name": "w", "template": inner}], "selector": {"a": "b"}},
    }
    before = copy.deepcopy(body)
    made = adopt(body, OWNER, "FineTuneJob")
    assert body == before
    assert (
        made["metadata"]["ownerReferences"][0] | {"uid": "u1", "controller": True}
        == made["metadata"]["ownerReferences"][0]
    )
    job = made["spec"]["replicatedJobs"][0]["template"]
    for place in (made, job, job["spec"]["template"]):
        assert place["metadata"]["labels"][UID_LABEL] == "u1"
    assert made["spec"]["selector"] == {"a": "b"}
    assert "blockOwnerDeletion" not in made["metadata"]["ownerReferences"][0]


def test_what_a_workload_needs_is_there_before_it_and_a_role_before_its_binding(
    server: Server, children: Children
) -> None:
    wanted = [
        manifest("Job", "j"),
        manifest("RoleBinding", "b"),
        manifest("Role", "r"),
        manifest("ConfigMap", "c"),
    ]
    assert run(children.ensure(OWNER, "FineTuneJob", wanted)) == 4
    order = [line.split()[1] for line in server.asked]
    assert order.index("Role") < order.index("RoleBinding") < order.index("Job")
    assert order[-1] == "Job"


def test_what_is_there_is_not_made_again(server: Server, children: Children) -> None:
    wanted = [manifest("Job", "j"), manifest("ConfigMap", "c")]
    run(children.ensure(OWNER, "FineTuneJob", wanted))
    server.asked.clear()
    assert run(children.ensure(OWNER, "FineTuneJob", wanted)) == 0
    assert server.asked == []


def test_what_was_made_before_a_crash_is_found_and_taken_in(server: Server, children: Children) -> None:
    run(children.ensure(OWNER, "FineTuneJob", [manifest("Job", "j")]))
    reborn = Children(server, Cache())  # type: ignore[arg-type]
    assert run(reborn.ensure(OWNER, "FineTuneJob", [manifest("Job", "j")])) == 0
    assert len(reborn.cache) == 1


def test_an_object_of_somebody_else_is_left_alone(server: Server, children: Children) -> None:
    server.put(manifest("Job", "j"))
    with pytest.raises(NameTakenError, match="Job j exists and is not ours"):
        run(children.ensure(OWNER, "FineTuneJob", [manifest("Job", "j")]))
    with pytest.raises(NameTakenError):
        run(children.keep(OWNER, "ServeEndpoint", [manifest("Job", "j")]))


def test_a_child_of_a_deleted_predecessor_is_waited_for(server: Server, children: Children) -> None:
    server.put(adopt(manifest("Job", "j"), {**OWNER, "uid": "u0"}, "FineTuneJob"))
    with pytest.raises(NotYetError, match="going away"):
        run(children.ensure(OWNER, "FineTuneJob", [manifest("Job", "j")]))


def test_what_is_kept_is_applied_once_and_again_only_when_the_plan_changes(
    server: Server, children: Children
) -> None:
    assert run(children.keep(OWNER, "ServeEndpoint", [manifest()])) == 1
    assert run(children.keep(OWNER, "ServeEndpoint", [manifest()])) == 0
    assert run(children.keep(OWNER, "ServeEndpoint", [manifest(replicas=2)])) == 1
    assert APPLIED in server.objects["Deployment", "bot-serve"]["metadata"]["annotations"]


def test_a_hand_that_changes_what_is_kept_is_overruled(server: Server, children: Children) -> None:
    run(children.keep(OWNER, "ServeEndpoint", [manifest(replicas=1)]))
    changed = copy.deepcopy(server.objects["Deployment", "bot-serve"])
    changed["spec"]["replicas"] = 7
    from tunewright_operator.reconcile.resources import DEPLOYMENT

    children.cache.put(DEPLOYMENT, server.put(changed))
    assert run(children.keep(OWNER, "ServeEndpoint", [manifest(replicas=1)])) == 1
    assert server.objects["Deployment", "bot-serve"]["spec"]["replicas"] == 1


def test_a_restarted_operator_writes_nothing_that_stands_as_planned(
    server: Server, children: Children
) -> None:
    wanted = [manifest(), manifest("PodDisruptionBudget", "bot")]
    run(children.keep(OWNER, "ServeEndpoint", wanted))
    reborn = Children(server, Cache())  # type: ignore[arg-type]
    assert run(reborn.keep(OWNER, "ServeEndpoint", wanted)) == 0
    assert run(reborn.keep(OWNER, "ServeEndpoint", wanted, deep=True)) == 0


def test_a_deep_look_finds_what_nobody_watches(server: Server, children: Children) -> None:
    budget = manifest("PodDisruptionBudget", "bot")
    run(children.keep(OWNER, "ServeEndpoint", [budget]))
    server.objects["PodDisruptionBudget", "bot"]["spec"]["template"] = None
    assert run(children.keep(OWNER, "ServeEndpoint", [budget])) == 0
    assert run(children.keep(OWNER, "ServeEndpoint", [budget], deep=True)) == 1
