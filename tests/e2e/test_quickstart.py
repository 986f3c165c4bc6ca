"""`kubectl apply -f examples/quickstart.yaml` on a real node: what the fixtures of `story` left behind."""

from __future__ import annotations

import hashlib

import pytest
from tests.cluster.api import condition
from tests.e2e.looking import EVERY, JOB, NAME, STEPS, faq, lines, losses, published
from tests.e2e.story import QUESTION, SYSTEM, Done, Installed, stalled
from tests.e2e.watching import distinct

pytestmark = pytest.mark.timeout(3600)


def test_the_operator_runs_as_a_pod_of_its_own_with_rights_of_its_own(installed: Installed) -> None:
    box = installed.box
    (pod,) = box.items(f"/api/v1/namespaces/{SYSTEM}/pods")
    assert pod["spec"]["serviceAccountName"] == "tunewright-operator"
    assert pod["spec"]["containers"][0]["image"].startswith("localhost/tunewright/operator:")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    token = box.service_account_token(SYSTEM, "tunewright-operator")
    for verb, kind, allowed in (
        ("list", "pods", True),
        ("list", "secrets", False),
        ("delete", "pods", False),
    ):
        asked = {"spec": {"resourceAttributes": {"verb": verb, "resource": kind, "namespace": "default"}}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert box.request("POST", path, asked, token=token)["status"]["allowed"] is allowed, (verb, kind)


def test_the_job_goes_through_its_phases_and_ends_with_every_condition_said(undisturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in undisturbed.jobs])
    assert phases == ["Provisioning", "Training", "Merging", "Succeeded"]
    last = {"status": undisturbed.jobs[-1]}
    for kind in ("Ready", "Trained", "Merged"):
        assert condition(last, kind), kind
    for kind in ("Reconciling", "Stalled", "Suspended"):
        assert condition(last, kind, "False"), kind
    assert last["status"]["observedGeneration"] == 1


def test_progress_reaches_status_out_of_the_pod(undisturbed: Done) -> None:
    last = undisturbed.jobs[-1]
    assert last["progress"]["step"] == last["progress"]["totalSteps"] == STEPS
    assert last["progress"]["loss"] == pytest.approx(losses(undisturbed.folder)[-1][1], rel=1e-5)
    assert last["checkpoint"]["step"] == STEPS
    told = distinct([one.get("progress", {}).get("step") for one in undisturbed.jobs])
    assert told == sorted(told)
    assert last["attempts"] >= 1
    assert last["preemptions"] == 0


def test_kubectl_get_shows_phase_step_and_loss(undisturbed: Done) -> None:
    head, row = undisturbed.table.splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "LOSS", "ETA", "COST", "AGE"]
    assert row.split()[:3] == [NAME, "Succeeded", str(STEPS)]


def test_what_was_published_is_what_status_names(undisturbed: Done) -> None:
    artifacts = undisturbed.jobs[-1]["artifacts"]
    assert artifacts["merged"]["uri"] == f"{JOB['spec']['output']['uri']}/merged"
    assert "model.safetensors" in " ".join(published(undisturbed.folder))
    manifest = (undisturbed.folder / "merged/tunewright.json").read_bytes()
    assert artifacts["merged"]["digest"] == hashlib.sha256(manifest).hexdigest()


def test_the_endpoint_waits_for_the_job_passes_its_gate_and_is_ready(undisturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in undisturbed.endpoints])
    assert phases[0] == "Pending"
    assert phases[-1] == "Ready"
    assert "Verifying" in phases
    last = undisturbed.endpoints[-1]
    assert last["model"]["job"] == NAME
    assert last["model"]["digest"] == undisturbed.jobs[-1]["artifacts"]["merged"]["digest"]
    assert condition({"status": last}, "Available")


def test_the_endpoint_gives_the_datasets_answer_through_its_service(undisturbed: Done) -> None:
    assert undisturbed.answers == [faq()[QUESTION]]


def test_suspending_gives_the_node_back_and_keeps_what_was_trained(disturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in disturbed.jobs])
    assert "Suspended" in phases
    assert phases[-1] == "Succeeded"
    halted = [one for one in disturbed.jobs if one.get("phase") == "Suspended"]
    assert condition({"status": halted[-1]}, "Suspended")
    assert halted[-1]["checkpoint"]["step"] == disturbed.resumed[0]
    assert disturbed.table.splitlines()[1].split()[:2] == [NAME, "Suspended"]


def test_every_resumption_was_in_the_middle_and_at_the_step_that_was_saved(disturbed: Done) -> None:
    starts = [line["step"] for line in lines(disturbed.folder) if line["event"] == "start"]
    assert starts == [0, *disturbed.resumed]
    assert EVERY <= starts[1] < starts[2] < STEPS


def test_a_disturbed_run_tells_the_same_losses_and_publishes_the_same_bytes(
    undisturbed: Done, disturbed: Done
) -> None:
    assert [step for step, _ in losses(disturbed.folder)] == list(range(1, STEPS + 1))
    assert losses(disturbed.folder) == losses(undisturbed.folder)
    assert published(disturbed.folder) == published(undisturbed.folder)


def test_a_queued_job_waits_for_kueue_and_an_eviction_sends_it_back_into_the_queue(queued: Done) -> None:
    phases = distinct([one.get("phase") for one in queued.jobs])
    trained = phases.index("Training")
    assert phases[0] == "Queued"
    assert "Queued" in phases[trained:]
    assert "Training" in phases[phases.index("Queued", trained) :]
    assert phases[-1] == "Succeeded"
    assert stalled(queued) == []


def test_an_evicted_job_goes_on_where_it_was_and_publishes_the_same_bytes(
    undisturbed: Done, queued: Done
) -> None:
    starts = [line["step"] for line in lines(queued.folder) if line["event"] == "start"]
    assert starts == [0, *queued.resumed]
    assert EVERY <= starts[1] < STEPS
    assert losses(queued.folder) == losses(undisturbed.folder)
    assert published(queued.folder) == published(undisturbed.folder)


def test_being_taken_away_counts_as_no_failure(disturbed: Done) -> None:
    assert disturbed.jobs[-1]["preemptions"] == 1
    assert stalled(disturbed) == []


def test_an_upgraded_operator_leaves_the_running_job_as_it_is(disturbed: Done) -> None:
    assert len(disturbed.kept) == 1
