# ruff: noqa: F811  (fixtures are imported by name)
"""FineTuneJobs on a real API server: every transition, by real Jobs whose pods' status the test sets."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from . import pods
from .api import ApiError, Cluster, condition
from .operating import CHILDREN, Operator, Space, operator, ready, space  # noqa: F401


def test_a_job_trains_merges_and_succeeds_and_says_so_on_the_way(space: Space, cluster: Cluster) -> None:
    space.job()
    space.phase("Provisioning")
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    status = space.phase("Training")
    assert (ready(status)["status"], status["attempts"], status["preemptions"]) == ("Unknown", 1, 0)
    space.progress(step=40, totalSteps=100, epoch=0.4, loss=1.25, tokensPerSecond=900.0, checkpoint=25)
    cluster.wait_for(lambda: space.status().get("progress", {}).get("step") == 40, "progress in status", 30)
    assert space.status()["checkpoint"]["step"] == 25
    pods.finish(cluster, space.namespace, first)
    space.phase("Merging")
    second = space.pod("merge")
    pods.run(cluster, space.namespace, second)
    space.phase("Merging", reason="Merging")
    space.progress(stage="merge", step=9, totalSteps=9, done=True, artifacts={"merged": "d" * 64})
    pods.finish(cluster, space.namespace, second)
    status = space.phase("Succeeded")
    for kind, truth in (("Ready", "True"), ("Reconciling", "False"), ("Stalled", "False"), ("Trained", "True"), ("Merged", "True")):  # fmt: skip
        assert condition({"status": status}, kind, truth), (kind, status["conditions"])
    assert status["observedGeneration"] == space.get()["metadata"]["generation"]
    assert status["artifacts"]["merged"] == {"uri": "gs://acme/models/bot/merged", "digest": "d" * 64}
    assert (status["progress"]["step"], status["progress"]["loss"]) == (40, 1.25)
    cluster.kubectl("wait", "-n", space.namespace, "--for=condition=Ready", "finetunejob/bot", "--timeout=5s")
    shown = cluster.kubectl("get", "-n", space.namespace, "ftj", "bot").splitlines()
    assert shown[0].split() == ["NAME", "PHASE", "STEP", "LOSS", "ETA", "COST", "AGE"]
    told = {e["reason"] for e in cluster.items(f"/api/v1/namespaces/{space.namespace}/events") if e["involvedObject"]["kind"] == "FineTuneJob"}  # fmt: skip
    assert {"Creating", "Training", "Succeeded"} <= told


def test_every_child_is_owned_labelled_and_deleted_with_its_job(space: Space, cluster: Cluster) -> None:
    made = space.job()
    pods.run(cluster, space.namespace, space.pod("train"))
    space.phase("Training")
    uid = made["metadata"]["uid"]
    assert space.names("jobs") == ["bot-train"]
    assert space.names("configmaps") == ["bot-progress", "bot-train"]
    assert space.names("serviceaccounts") == ["bot-job"]
    assert space.names("roles") == space.names("rolebindings") == ["bot-progress"]
    job = cluster.request("GET", space.path("jobs", "bot-train", "/apis/batch/v1"))
    assert job["metadata"]["ownerReferences"][0]["uid"] == uid
    assert "finalizers" not in space.get()["metadata"]
    assert not any("kopf" in key for key in space.get()["metadata"].get("annotations", {}))
    cluster.request("DELETE", space.path("finetunejobs", "bot"))

    def gone() -> bool:
        pods.end_deleted(cluster, space.namespace)
        return not any(space.names(kind) for kind in CHILDREN)

    cluster.wait_for(gone, "the end of every child", 60)


def fail(code: int, reason: str | None = None) -> Callable[[Cluster, str, str], None]:
    return lambda cluster, namespace, pod: pods.finish(cluster, namespace, pod, code, reason)


def evict(reason: str, message: str = "") -> Callable[[Cluster, str, str], None]:
    return lambda cluster, namespace, pod: pods.evict(cluster, namespace, pod, reason, message)


RESTARTS = [
    ("a preempted pod starts again and counts as preempted", evict("PreemptionByScheduler"), 1, 1),
    ("a pod of a node that went away starts again", evict("DeletionByTaintManager"), 1, 1),
    ("a pod that saved its checkpoint starts again", fail(75), 1, 1),
    ("a pod that failed starts again and counts as failed", fail(1), 2, 0),
    ("a pod out of memory starts again and counts as failed", fail(137, "OOMKilled"), 2, 0),
    ("a pod that a node under repair refused starts again", lambda c, n, p: pods.reject(c, n, p), 1, 1),
]


@pytest.mark.parametrize(
    ("sentence", "end", "attempts", "preemptions"), RESTARTS, ids=[r[0] for r in RESTARTS]
)
def test_restart(
    sentence: str,
    end: Callable[[Cluster, str, str], None],
    attempts: int,
    preemptions: int,
    space: Space,
    cluster: Cluster,
) -> None:
    space.job()
    first = space.pod("train")
    if "refused" not in sentence:
        pods.run(cluster, space.namespace, first)
        space.phase("Training")
    end(cluster, space.namespace, first)
    second = space.pod("train", but={first})
    pods.run(cluster, space.namespace, second)
    cluster.wait_for(lambda: space.status().get("attempts") == attempts, f"{attempts} attempts", 30)
    status = space.phase("Training")
    assert (status["attempts"], status["preemptions"]) == (attempts, preemptions)


ENDS = [
    ("bad input is never tried again", fail(2), "BadInput"),
    (
        "scratch space that ran out is never tried again",
        evict("TerminationByKubelet", "The node was low on resource: ephemeral-storage."),
        "StorageExhausted",
    ),
]


@pytest.mark.parametrize(("sentence", "end", "reason"), ENDS, ids=[r[0] for r in ENDS])
def test_end(
    sentence: str, end: Callable[[Cluster, str, str], None], reason: str, space: Space, cluster: Cluster
) -> None:
    space.job()
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    end(cluster, space.namespace, first)
    status = space.phase("Failed", reason=reason)
    assert ready(status)["status"] == "False"
    time.sleep(1)
    assert [p for p in space.pods("train") if p["status"]["phase"] not in ("Failed",)] == []


def test_retries_are_counted_across_pods_and_end_the_job(space: Space, cluster: Cluster) -> None:
    space.job(limits={"retries": 1})
    first = space.pod("train")
    pods.finish(cluster, space.namespace, first, 1)
    second = space.pod("train", but={first})
    pods.finish(cluster, space.namespace, second, 1)
    status = space.phase("Failed", reason="RetriesExhausted")
    assert "limits.retries allows 1" in status["message"]
    space.change({"limits": {"retries": 2}})
    third = space.pod("train", but={first, second})
    pods.run(cluster, space.namespace, third)
    status = space.phase("Training")
    assert (status["attempts"], "completionTime" in status) == (3, False)


def test_an_image_that_cannot_be_pulled_needs_somebody_and_heals(space: Space, cluster: Cluster) -> None:
    space.job()
    first = space.pod("train")
    pods.wait(cluster, space.namespace, first, "ImagePullBackOff", 'Back-off pulling image "x"')
    status = space.phase("Provisioning", reason="ImagePullFailed")
    assert ready(status)["status"] == "False"
    assert condition({"status": status}, "Stalled")
    pods.run(cluster, space.namespace, first)
    assert ready(space.phase("Training"))["status"] == "Unknown"


def test_a_slice_that_no_node_offers_is_waited_for(space: Space) -> None:
    space.job(accelerator={"type": "v5p", "topology": "2x2x1"}, training={"globalBatchSize": 16})
    status = space.phase("Provisioning", reason="Unschedulable")
    assert ready(status)["status"] == "Unknown"
    assert "waiting for a node" in status["message"]


def test_a_missing_claim_is_named_and_heals_when_it_appears(space: Space, cluster: Cluster) -> None:
    space.job(output={"uri": "pvc://models/bot"})
    status = space.phase("Pending", reason="ReferenceNotFound")
    assert 'PersistentVolumeClaim "models" (spec.output.uri) does not exist' in status["message"]
    assert space.names("jobs") == []
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    path = f"/api/v1/namespaces/{space.namespace}/persistentvolumeclaims"
    cluster.request("POST", path, {"metadata": {"name": "models"}, "spec": claim})
    space.phase("Provisioning")


def test_a_missing_service_account_is_named_and_heals_when_it_appears(space: Space, cluster: Cluster) -> None:
    space.job(serviceAccountName="trainer")
    status = space.phase("Pending", reason="ReferenceNotFound")
    assert 'ServiceAccount "trainer" (spec.serviceAccountName) does not exist' in status["message"]
    path = f"/api/v1/namespaces/{space.namespace}/serviceaccounts"
    cluster.request("POST", path, {"metadata": {"name": "trainer"}})
    space.pod("train")


def test_a_quota_that_refuses_pods_is_told_in_its_own_words(space: Space, cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{space.namespace}/resourcequotas"
    cluster.request("POST", path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    time.sleep(1)
    space.job()
    status = space.phase("Provisioning", reason="PodsRefused")
    assert "exceeded quota" in status["message"]


def test_suspending_takes_the_pods_away_and_resuming_goes_on_as_the_same_attempt(
    space: Space, cluster: Cluster
) -> None:
    space.job()
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    space.change({"suspend": True})
    status = space.phase("Suspended")
    assert condition({"status": status}, "Suspended")

    def idle() -> bool:
        pods.end_deleted(cluster, space.namespace)
        return not space.names("jobs") and not space.names("pods")

    cluster.wait_for(idle, "the end of the pods", 60)
    space.change({"suspend": False})
    second = space.pod("train", but={first})
    pods.run(cluster, space.namespace, second)
    status = space.phase("Training")
    assert (status["attempts"], status["preemptions"]) == (1, 0)
    assert condition({"status": status}, "Suspended", "False")


def test_what_kueue_does_with_suspend_is_left_to_kueue(space: Space, cluster: Cluster) -> None:
    space.job(queue={"name": "tpu-a"})
    status = space.phase("Queued", reason="Queued")
    assert "queue tpu-a" in status["message"]
    path = space.path("jobs", "bot-train", "/apis/batch/v1")
    assert cluster.request("GET", path)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu-a"
    cluster.patch(
        path, {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"flavor": "spot"}}}}}
    )
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    cluster.patch(path, {"spec": {"suspend": True}})
    space.phase("Queued")
    time.sleep(1)
    found = cluster.request("GET", path)["spec"]
    assert found["suspend"] is True
    assert found["template"]["spec"]["nodeSelector"]["flavor"] == "spot"


def aged(cluster: Cluster, space: Space, pod: str, hours: float) -> None:
    """The pod runs, and has done so for a while; in one write, because it may be the last."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - hours * 3600))
    container = {
        "name": "train",
        "image": "x",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": started}},
    }
    status = {"phase": "Running", "startTime": started, "containerStatuses": [container]}
    cluster.patch(f"/api/v1/namespaces/{space.namespace}/pods/{pod}/status", {"status": status})


def test_a_spent_budget_ends_the_job_and_a_raised_one_goes_on(space: Space, cluster: Cluster) -> None:
    slice_ = {"accelerator": {"type": "v5p", "topology": "2x2x1"}, "training": {"globalBatchSize": 16}}
    space.job(**slice_, limits={"costUSD": 30.0})
    first = space.pod("train")
    aged(cluster, space, first, 2)
    status = space.phase("Failed", reason="CostLimit")
    assert status["cost"]["spentUSD"] == pytest.approx(4 * 2 * 4.2, abs=0.5)
    assert "raise the limit" in status["message"]

    def idle() -> bool:
        pods.end_deleted(cluster, space.namespace)
        return not space.names("pods") and not space.names("jobs")

    cluster.wait_for(idle, "the end of the pods", 60)
    space.change({"limits": {"costUSD": 300.0}})
    second = space.pod("train", but={first})
    aged(cluster, space, second, 0)
    status = space.phase("Training")
    assert status["preemptions"] == 0
    assert status["cost"]["spentUSD"] >= 33


def test_a_job_that_is_deleted_by_hand_is_made_again(space: Space, cluster: Cluster) -> None:
    space.job()
    first = space.pod("train")
    path = space.path("jobs", "bot-train", "/apis/batch/v1")
    before = cluster.request("GET", path)["metadata"]["uid"]
    cluster.request("DELETE", path, {"propagationPolicy": "Background"})
    space.pod("train", but={first})
    assert cluster.request("GET", path)["metadata"]["uid"] != before


def test_a_configuration_that_is_deleted_by_hand_is_made_again(space: Space, cluster: Cluster) -> None:
    space.job()
    space.pod("train")
    for name in ("bot-train", "bot-progress"):
        cluster.request("DELETE", f"/api/v1/namespaces/{space.namespace}/configmaps/{name}")
    cluster.wait_for(
        lambda: space.names("configmaps") == ["bot-progress", "bot-train"], "both ConfigMaps", 30
    )


def test_the_configuration_of_a_running_job_cannot_be_changed(space: Space, cluster: Cluster) -> None:
    space.job()
    space.pod("train")
    path = f"/api/v1/namespaces/{space.namespace}/configmaps/bot-train"
    with pytest.raises(ApiError, match="immutable"):
        cluster.patch(path, {"data": {"train.json": "{}"}})


def test_what_others_made_under_a_childs_name_is_not_taken_over(space: Space, cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{space.namespace}/configmaps"
    cluster.request("POST", path, {"metadata": {"name": "bot-train"}, "data": {"mine": "yes"}})
    space.job()
    status = space.phase("Pending", reason="NameTaken")
    assert "bot-train" in status["message"]
    assert cluster.request("GET", f"{path}/bot-train")["data"] == {"mine": "yes"}
    cluster.request("DELETE", f"{path}/bot-train")
    space.phase("Provisioning")


def test_a_job_of_the_same_name_waits_for_the_children_of_its_predecessor(
    space: Space, cluster: Cluster
) -> None:
    space.job()
    first = space.pod("train")
    pods.run(cluster, space.namespace, first)
    space.phase("Training")
    cluster.request("DELETE", space.path("finetunejobs", "bot"))
    made = space.job()

    def owned() -> bool:
        pods.end_deleted(cluster, space.namespace)
        found = cluster.items(space.path("jobs", group="/apis/batch/v1"))
        return any(
            j["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
            for j in found
            if "deletionTimestamp" not in j["metadata"]
        )

    cluster.wait_for(owned, "a Job of the new FineTuneJob", 60)
    status = space.phase("Provisioning")
    assert status["preemptions"] == 0


def test_a_job_that_is_over_is_deleted_with_its_children_when_its_time_has_come(
    space: Space, cluster: Cluster
) -> None:
    space.job(ttlSecondsAfterFinished=2, output={"uri": "gs://acme/models/bot", "merge": False})
    pods.finish(cluster, space.namespace, space.pod("train"))
    cluster.wait_for(lambda: not cluster.exists(space.path("finetunejobs", "bot")), "the end of the job", 30)
    cluster.wait_for(lambda: not space.names("jobs"), "the end of its Job", 30)


def test_a_job_whose_jobs_were_cleaned_up_is_not_run_again(space: Space, cluster: Cluster) -> None:
    space.job(output={"uri": "gs://acme/models/bot", "merge": False})
    pods.finish(cluster, space.namespace, space.pod("train"))
    space.phase("Succeeded")
    path = space.path("jobs", "bot-train", "/apis/batch/v1")
    cluster.request("DELETE", path, {"propagationPolicy": "Background"})
    cluster.wait_for(lambda: not space.names("jobs"), "the end of the Job", 30)
    time.sleep(2)
    assert space.names("jobs") == []
    assert space.status()["phase"] == "Succeeded"


def test_a_spec_that_can_never_run_fails_with_the_reason(space: Space) -> None:
    space.job(
        model={"name": "gemma-4-31b"},
        accelerator={"type": "v5e", "topology": "1x1"},
        dataset={"train": ["gs://a-bucket/x.jsonl"], "maxLength": 2048},
    )
    status = space.phase("Failed", reason="Invalid")
    assert "GiB" in status["message"]
    assert space.names("jobs") == []


def versions(space: Space) -> dict[str, str]:
    """The version of everything in the namespace that somebody could have written."""
    found: dict[str, str] = {}
    for kind in CHILDREN:
        for name in space.names(kind):
            path = space.path(kind, name, _group(kind))
            found[f"{kind}/{name}"] = space.cluster.request("GET", path)["metadata"]["resourceVersion"]
    for plural in ("finetunejobs", "serveendpoints"):
        for one in space.cluster.items(space.path(plural)):
            found[f"{plural}/{one['metadata']['name']}"] = one["metadata"]["resourceVersion"]
    return found


def _group(kind: str) -> str:
    from .operating import _GROUPS

    return _GROUPS[kind]


def test_nothing_is_written_while_nothing_happens_nor_when_the_operator_restarts(
    space: Space, cluster: Cluster
) -> None:
    space.job("one")
    space.job("two", suspend=True)
    space.endpoint("one", model={"fineTuneJobRef": {"name": "one"}})
    pods.run(cluster, space.namespace, space.pod("train"))
    space.phase("Training", name="one")
    space.phase("Suspended", name="two")
    space.phase("Pending", "ServeEndpoint", "one")
    time.sleep(2)
    before = versions(space)
    with Operator(cluster, "--namespaces", space.namespace, "--resync", "1", "--pulse", "0.2") as second:
        time.sleep(6)
        assert second.writes() == {}, second.lines()
        assert second.alive()
    assert versions(space) == before
