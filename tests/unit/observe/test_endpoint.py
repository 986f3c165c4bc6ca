"""A ServeEndpoint's status, from what its servers, gate and Service show."""

from __future__ import annotations

from typing import Any

import pytest

from support.objects import Job, Pod, at, stamp
from tunewright_operator.api import ServeEndpointSpec, ServeEndpointStatus
from tunewright_operator.observe import endpoint as judge
from tunewright_operator.observe.endpoint import Facts, Source, Verdict
from tunewright_operator.observe.job import Missing

META = {"name": "bot", "namespace": "team", "uid": "u1", "generation": 2}
NEW, OLD = "r2", "r1"
READY = [{"type": "Ready", "status": "True"}]


def spec(**changes: Any) -> ServeEndpointSpec:
    body = {"model": {"uri": "gs://acme/m"}, "accelerator": {"type": "v6e", "topology": "2x4"}, **changes}
    return ServeEndpointSpec.model_validate(body)


def deployment(revision: str = NEW, wanted: int = 1, ready: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {
            "name": f"bot-{revision}",
            "uid": revision,
            "generation": 1,
            "labels": {judge.REVISION: revision},
        },
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": 1,
            "replicas": wanted,
            "updatedReplicas": wanted,
            "readyReplicas": ready,
            "availableReplicas": ready,
            **more,
        },
    }


def server(state: Pod, revision: str = NEW, ready: bool = False, stage: str = "serve") -> dict[str, Any]:
    pod = state.slim
    pod["metadata"]["labels"] |= {judge.REVISION: revision, "tunewright.dev/stage": stage}
    pod["status"]["conditions"] = [*pod["status"].get("conditions", []), *(READY if ready else [])]
    return pod


POD = Pod.of("server", stage="serve")
UP = server(POD.running(), ready=True)
SOURCE = Source(True, "gs://acme/m", "d2")
PASSED = Job.of("gate").complete().slim
PROBE = Job.of("gate").slim


def facts(**changes: Any) -> Facts:
    base: dict[str, Any] = {"source": SOURCE, "revision": NEW, "name": "bot", "url": "http://bot.team.svc/v1"}
    return Facts(**{**base, **changes})


def look(
    old: dict[str, Any] | None = None, given: ServeEndpointSpec | None = None, **changes: Any
) -> Verdict:
    verdict = judge.observe(META, given or spec(), old or {}, facts(**changes), at(0))
    ServeEndpointStatus.model_validate(verdict.status)
    return verdict


def condition(verdict: Verdict, kind: str) -> tuple[str, str]:
    found = next(c for c in verdict.status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


WAITING = Source(False, job="bot", reason="WaitingForJob", message="waiting")
GONE = Source(False, job="bot", reason="ReferenceNotFound", message="no such job", stuck=True)
UNGATED = spec(rollout={"gate": False})
TWO = spec(replicas=2)

ROWS = [
    ("a job that is not done is waited for", {"source": WAITING, "revision": None}, "Pending", "Unknown", "WaitingForJob", ()),
    ("a job that is not there needs somebody", {"source": GONE, "revision": None}, "Pending", "False", "ReferenceNotFound", ()),
    ("a plan that is impossible needs somebody", {"invalid": "does not fit"}, "Failed", "False", "Invalid", ()),
    ("a published model is served", {}, "Provisioning", "Unknown", "Starting", ("serve",)),
    (
        "a claim that is missing needs somebody",
        {"missing": [Missing("PersistentVolumeClaim", "cache", "spec.compileCache.pvc")]},
        "Pending", "False", "ReferenceNotFound", (),
    ),
    ("pods that are not there yet are waited for", {"deployments": [deployment()]}, "Provisioning", "Unknown", "Starting", ("serve",)),
    (
        "a node that is not there yet is waited for",
        {"deployments": [deployment()], "pods": [server(POD.unschedulable())]},
        "Provisioning", "Unknown", "Unschedulable", ("serve",),
    ),
    (
        "a running server that is not ready loads the model",
        {"deployments": [deployment()], "pods": [server(POD.running())]},
        "Starting", "Unknown", "Starting", ("serve",),
    ),
    (
        "an image that cannot be pulled needs somebody",
        {"deployments": [deployment()], "pods": [server(POD.waiting("ImagePullBackOff"))]},
        "Failed", "False", "ImagePullFailed", ("serve",),
    ),
    (
        "a server that keeps ending needs somebody",
        {"deployments": [deployment()], "pods": [server(POD.waiting("CrashLoopBackOff"))]},
        "Failed", "False", "Restarting", ("serve",),
    ),
    (
        "pods that the API server refuses need somebody",
        {"deployments": [deployment(conditions=[{"type": "ReplicaFailure", "status": "True", "message": "quota"}])]},
        "Provisioning", "False", "PodsRefused", ("serve",),
    ),
    (
        "a server that is not ready in time needs somebody",
        {"deployments": [deployment(conditions=[{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}])]},
        "Failed", "False", "ProgressDeadlineExceeded", ("serve",),
    ),
    (
        "a ready server is verified before anybody reaches it",
        {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PROBE},
        "Verifying", "Unknown", "Verifying", ("serve", "gate"),
    ),
    (
        "a verified server gets its Service",
        {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED},
        "Starting", "Unknown", "RollingOut", ("serve", "gate", "after"),
    ),
    (
        "a verified server with its Service is ready",
        {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True},
        "Ready", "True", "Ready", ("serve", "gate", "after"),
    ),
    (
        "a ready server whose Service still points elsewhere is not",
        {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True, "pointed": OLD},
        "Starting", "Unknown", "RollingOut", ("serve", "gate", "after"),
    ),
    (
        "a model that its gate refused needs somebody, and no Service is made",
        {
            "deployments": [deployment(ready=1)], "gate": Job.of("gate").failed().slim,
            "pods": [UP, server(Pod.of("g", "gate").failed(2, message="prompt 3 differs"), stage="gate")],
        },
        "Failed", "False", "GateFailed", ("serve",),
    ),
    (
        "without a gate a ready server is ready",
        {"deployments": [deployment(ready=1)], "pods": [UP], "exposed": True, "given": UNGATED},
        "Ready", "True", "Ready", ("serve", "after"),
    ),
    (
        "of two replicas one is not enough",
        {"deployments": [deployment(wanted=2, ready=1)], "pods": [UP], "gate": PASSED, "exposed": True, "given": TWO},
        "Starting", "Unknown", "RollingOut", ("serve", "gate", "after"),
    ),
    (
        "no replica is no failure",
        {"deployments": [deployment(wanted=0)], "gate": PASSED, "exposed": True, "given": spec(replicas=0)},
        "Stopped", "Unknown", "ScaledToZero", ("serve", "after"),
    ),
    (
        "a benchmark runs once it is ready",
        {
            "deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True,
            "given": spec(benchmark={}),
        },
        "Ready", "True", "Ready", ("serve", "gate", "after", "bench"),
    ),
    (
        "a job that is deleted later changes nothing about what is served",
        {"source": GONE, "deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True},
        "Ready", "True", "Ready", ("serve", "gate", "after"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "facts", "phase", "truth", "reason", "want"), ROWS, ids=[row[0] for row in ROWS]
)
def test_phase(
    sentence: str, facts: dict[str, Any], phase: str, truth: str, reason: str, want: tuple[str, ...]
) -> None:
    verdict = look(**facts)
    assert (verdict.status["phase"], *condition(verdict, "Ready"), verdict.want) == (
        phase,
        truth,
        reason,
        want,
    )
    assert condition(verdict, "Stalled")[0] == ("True" if truth == "False" else "False")


def test_the_model_is_told_once_it_answers_and_stays_told_while_another_one_comes_up() -> None:
    ready = {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True}
    first = look(**ready)
    assert first.status["model"] == {"name": "bot", "uri": "gs://acme/m", "digest": "d2"}
    old = server(POD.running(), OLD, ready=True)
    second = look(
        first.status,
        source=Source(True, "gs://acme/n", "d3"),
        deployments=[deployment(OLD, ready=1)],
        pods=[old],
        exposed=True,
        pointed=OLD,
    )
    assert second.status["model"]["digest"] == "d2"
    assert (second.status["phase"], second.want) == ("Provisioning", ("serve",))
    assert condition(second, "Available")[0] == "True"


def test_what_answers_while_the_new_model_is_refused_is_the_old_one() -> None:
    verdict = look(
        deployments=[deployment(OLD, ready=1), deployment(ready=1)],
        pods=[server(POD.running(), OLD, ready=True), server(Pod.of("n", "serve").running(), ready=True)],
        gate=Job.of("gate").failed().slim,
        exposed=True,
        pointed=OLD,
    )
    assert condition(verdict, "Ready") == ("False", "GateFailed")
    assert condition(verdict, "Available")[0] == "True"
    assert not verdict.sweep


def test_a_server_that_is_ending_is_not_counted() -> None:
    ending = server(POD.running(), ready=True)
    ending["metadata"]["deletionTimestamp"] = stamp(0)
    verdict = look(deployments=[deployment(ready=1)], pods=[ending], gate=PASSED, exposed=True)
    assert condition(verdict, "Available")[0] == "False"


def test_a_look_at_an_unchanged_endpoint_gives_the_same_status() -> None:
    ready = {"deployments": [deployment(ready=1)], "pods": [UP], "gate": PASSED, "exposed": True}
    first = look(**ready)
    assert look(first.status, **ready).status == first.status


FIGURES = {"digest": "d" * 64, "results": [{"rate": 1.0, "failed": 0}]}
MEASURED = {
    "deployments": [deployment(ready=1)],
    "pods": [UP],
    "gate": PASSED,
    "exposed": True,
    "figures": FIGURES,
}
BENCH = Job.of("bench")


def test_figures_name_what_they_were_measured_on_and_when() -> None:
    found = look(**MEASURED, bench=BENCH.complete().slim).status
    assert found["benchmark"] == {**FIGURES, "revision": NEW, "generation": 2, "time": stamp(0)}
    again = judge.observe(
        {**META, "generation": 7}, spec(), found, facts(**MEASURED, bench=BENCH.complete().slim), at(9)
    )
    assert again.status["benchmark"] == found["benchmark"]


def test_figures_of_the_benchmark_before_are_not_shown_for_a_new_model() -> None:
    old = look(**MEASURED, bench=BENCH.complete().slim).status
    assert "benchmark" not in look(old, **{**MEASURED, "revision": "r3"}).status
    assert "benchmark" not in look(old, **{**MEASURED, "revision": "r3"}, bench=BENCH.slim).status
    assert (
        "benchmark" not in look({"benchmark": FIGURES}, **MEASURED).status
    )  # of an operator that did not say


def test_figures_stay_while_the_model_that_they_are_of_serves() -> None:
    old = look(**MEASURED, bench=BENCH.complete().slim).status
    rolling = {**MEASURED, "revision": "r3", "pointed": NEW}
    assert look(old, **rolling).status["benchmark"] == old["benchmark"]
    assert "benchmark" not in look(old, **{**rolling, "pointed": "r3"}).status
    assert look(old, **MEASURED).status["benchmark"] == old["benchmark"]  # its Job was cleaned up
    assert look(old, source=GONE, revision=None).status["benchmark"] == old["benchmark"]


FILLING = Job.of("warm", "bot-warm-k").slim
FILLED = Job.of("warm", "bot-warm-k").complete().slim
UNFILLED = Job.of("warm", "bot-warm-k").failed().slim


@pytest.mark.parametrize("warm", [None, FILLING])
def test_the_compile_cache_is_filled_before_the_first_server(warm: dict[str, Any] | None) -> None:
    verdict = look(warming=True, warm=warm)
    assert verdict.want == ("warm",)
    assert condition(verdict, "Ready") == ("Unknown", "FillingCompileCache")


def test_a_cache_that_is_filled_lets_the_server_start() -> None:
    assert look(warming=True, warm=FILLED).want == ("serve",)


def test_a_cache_that_cannot_be_filled_costs_time_and_is_said() -> None:
    pod = server(Pod.of("warm", stage="warm").failed(1, message="no space left"), stage="warm")
    verdict = look(warming=True, warm=UNFILLED, pods=[pod])
    assert verdict.want == ("serve",)
    assert "could not be filled" in verdict.status["message"] and "no space left" in verdict.status["message"]
    later = look(warming=True, warm=UNFILLED, pods=[pod, server(POD.running())], deployments=[deployment()])
    assert "could not be filled" in later.status["message"]


def test_a_server_that_is_there_holds_the_slice_and_fills_the_cache_itself() -> None:
    assert look(warming=True, deployments=[deployment(OLD)]).want == ("serve",)


def test_a_job_that_finds_no_slice_is_said() -> None:
    pod = server(Pod.of("warm", stage="warm").unschedulable("no v6e"), stage="warm")
    verdict = look(warming=True, warm=FILLING, pods=[pod])
    assert "no v6e" in verdict.status["message"]
