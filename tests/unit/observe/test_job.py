"""A FineTuneJob's status, from what its stages show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.objects import Job, Pod, at, stamp
from tunewright_operator.api import FineTuneJobSpec, FineTuneJobStatus
from tunewright_operator.observe import job as judge
from tunewright_operator.observe.job import Facts, Missing, StageFacts, Verdict
from tunewright_workloads.contract.progress import Progress

META = {"name": "bot", "namespace": "team", "uid": "u1", "generation": 3}
STAGES = (StageFacts("train"), StageFacts("merge"))
EVALUATED = (*STAGES, StageFacts("evaluate"))
PRICE = 4.0
TRAIN, MERGE = Job.of("train"), Job.of("merge", "bot-merge")
POD = Pod.of()


def spec(**changes: Any) -> FineTuneJobSpec:
    body: dict[str, Any] = {
        "model": {"name": "gemma-4-31b"},
        "dataset": {"train": ["gs://acme/train.jsonl"]},
        "accelerator": {"type": "v5p", "topology": "2x2x1"},
        "output": {"uri": "gs://acme/models/bot"},
        **changes,
    }
    return FineTuneJobSpec.model_validate(body)


def look(
    old: dict[str, Any] | None = None,
    *,
    train: Job | None = None,
    merge: Job | None = None,
    evaluate: Job | None = None,
    pods: Sequence[Pod] = (),
    minute: float = 0,
    stages: Sequence[StageFacts] = STAGES,
    given: FineTuneJobSpec | None = None,
    generation: int = 3,
    **more: Any,
) -> Verdict:
    made = {"train": train, "merge": merge, "evaluate": evaluate}
    facts = Facts(
        stages,
        {s.name: made[s.name].slim if made[s.name] else None for s in stages},
        [p.slim for p in pods],
        price=PRICE,
        artifacts={"adapter": "gs://acme/models/bot/checkpoints", "merged": "gs://acme/models/bot/merged"},
        **more,
    )
    verdict = judge.observe({**META, "generation": generation}, given or spec(), old or {}, facts, at(minute))
    FineTuneJobStatus.model_validate(verdict.status)
    return verdict


def ready(verdict: Verdict) -> tuple[str, str]:
    found = next(c for c in verdict.status["conditions"] if c["type"] == "Ready")
    return found["status"], found["reason"]


def condition(verdict: Verdict, kind: str) -> str | None:
    return next((c["status"] for c in verdict.status["conditions"] if c["type"] == kind), None)


TRAINED = look(train=TRAIN.complete(), pods=[POD.succeeded()]).status
QUEUED = spec(queue={"name": "tpu-a"})

ON_ITS_WAY = [
    ("a new job starts to train", {}, "Provisioning", "Unknown", "Creating", "train"),
    ("a new job with a queue is queued", {"given": QUEUED}, "Queued", "Unknown", "Queued", "train"),
    ("a job without quota is queued", {"train": TRAIN.queued("tpu-a")}, "Queued", "Unknown", "Queued", "train"),
    ("a Job that others suspended waits for them", {"train": TRAIN.suspended()}, "Suspended", "Unknown", "Held", "train"),
    ("a Job without pods is being provisioned", {"train": TRAIN}, "Provisioning", "Unknown", "Creating", "train"),
    (
        "a slice that is not there yet is being provisioned",
        {"train": TRAIN, "pods": [POD.unschedulable()]},
        "Provisioning", "Unknown", "Unschedulable", "train",
    ),
    (
        "a pod that starts is being provisioned",
        {"train": TRAIN, "pods": [POD.waiting("ContainerCreating")]},
        "Provisioning", "Unknown", "Starting", "train",
    ),
    ("a running pod trains", {"train": TRAIN, "pods": [POD.running()]}, "Training", "Unknown", "Training", "train"),
    (
        "a pod that is done trains until its Job says so",
        {"train": TRAIN, "pods": [POD.succeeded()]}, "Training", "Unknown", "Training", "train",
    ),
    (
        "a node under repair is no failure",
        {"train": TRAIN, "pods": [POD.rejected()]},
        "Provisioning", "Unknown", "NodeRepair", "train",
    ),
    (
        "a preempted pod starts again",
        {"train": TRAIN, "pods": [POD.failed(75)]},
        "Provisioning", "Unknown", "Restarting", "train",
    ),
    (
        "a failed pod starts again within the retries",
        {"train": TRAIN, "pods": [POD.failed(1)]},
        "Provisioning", "Unknown", "Restarting", "train",
    ),
    (
        "an image that cannot be pulled needs somebody",
        {"train": TRAIN, "pods": [POD.waiting("ImagePullBackOff")]},
        "Provisioning", "False", "ImagePullFailed", "train",
    ),
    (
        "a secret that is missing needs somebody",
        {"train": TRAIN, "pods": [POD.waiting("CreateContainerConfigError", 'secret "hf" not found')]},
        "Provisioning", "False", "ContainerConfigFailed", "train",
    ),
    (
        "a claim that is missing needs somebody and nothing is started",
        {"missing": [Missing("PersistentVolumeClaim", "data", "spec.output.uri")]},
        "Pending", "False", "ReferenceNotFound", None,
    ),
    (
        "pods that the API server refuses need somebody",
        {"train": TRAIN, "hint": "exceeded quota: tpus"},
        "Provisioning", "False", "PodsRefused", "train",
    ),
    ("a trained job merges", {"train": TRAIN.complete()}, "Merging", "Unknown", "Creating", "merge"),
    (
        "a merge that runs is merging",
        {"train": TRAIN.complete(), "merge": MERGE, "pods": [Pod.of("m", "merge").running()]},
        "Merging", "Unknown", "Merging", "merge",
    ),
    (
        "a trained job whose Job was cleaned up does not train again",
        {"old": TRAINED}, "Merging", "Unknown", "Creating", "merge",
    ),
    (
        "a published job is done",
        {"train": TRAIN.complete(), "merge": MERGE.complete()}, "Succeeded", "True", "Succeeded", None,
    ),
    (
        "a job with a gate evaluates after the merge",
        {"train": TRAIN.complete(), "merge": MERGE.complete(), "stages": EVALUATED},
        "Evaluating", "Unknown", "Creating", "evaluate",
    ),
    ("a suspended job gives its slice back", {"given": spec(suspend=True)}, "Suspended", "Unknown", "Suspended", None),
    (
        "an old Job that is going away is waited for",
        {"train": TRAIN.deleting()}, "Provisioning", "Unknown", "Restarting", None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "facts", "phase", "truth", "reason", "start"), ON_ITS_WAY, ids=[row[0] for row in ON_ITS_WAY]
)
def test_phase(
    sentence: str, facts: dict[str, Any], phase: str, truth: str, reason: str, start: str | None
) -> None:
    verdict = look(**facts)
    assert (verdict.status["phase"], *ready(verdict), verdict.start) == (phase, truth, reason, start)
    assert verdict.status["observedGeneration"] == 3
    stalled = truth == "False"
    assert condition(verdict, "Stalled") == ("True" if stalled else "False")
    moving = phase not in ("Succeeded", "Failed", "Suspended") and not stalled
    assert condition(verdict, "Reconciling") == ("True" if moving else "False")


ENDS = [
    (
        "bad input ends the job at once",
        {"train": TRAIN, "pods": [POD.failed(2, message="no rows")]}, "BadInput", "no rows",
    ),
    (
        "scratch space that ran out ends the job, though Kubernetes would try again",
        {"train": TRAIN, "pods": [POD.evicted("The node was low on resource: ephemeral-storage")]},
        "StorageExhausted", "larger disk",
    ),
    (
        "a fourth failure is one too many",
        {"train": TRAIN, "pods": [Pod.of(f"p{i}", created=i).failed(1) for i in range(4)]},
        "RetriesExhausted", "limits.retries allows 3",
    ),
    (
        "out of memory counts as a failure each time",
        {"train": TRAIN, "pods": [Pod.of(f"p{i}", created=i).failed(137, reason="OOMKilled") for i in range(4)]},
        "RetriesExhausted", "OOMKilled",
    ),
    (
        "a Job of JobSet or Kubernetes that gave up with no retries left ends the job",
        {"train": TRAIN.failed(), "pods": [POD.failed(1)], "given": spec(limits={"retries": 0})},
        "RetriesExhausted", "exit code 1",
    ),
    ("a spec that cannot be planned ends the job", {"invalid": "spec.accelerator: 31B does not fit"}, "Invalid", "31B"),
    (
        "a model above the gate is not published",
        {
            "train": TRAIN.complete(), "merge": MERGE.complete(), "stages": EVALUATED,
            "evaluate": Job.of("evaluate", "bot-evaluate").failed("PodFailurePolicy"),
            "pods": [Pod.of("e", "evaluate").failed(2, message="loss 1.4 above 1.2")],
        },
        "EvaluationGate", "loss 1.4 above 1.2",
    ),
    (
        "a job that ran as long as it may ends with its checkpoint kept",
        {"train": TRAIN, "pods": [POD.running(0)], "minute": 61, "given": spec(limits={"runTime": "1h"})},
        "RunTimeLimit", "raise the limit",
    ),
    (
        "a job that spent its budget ends with its checkpoint kept",
        {"train": TRAIN, "pods": [POD.running(0)], "minute": 61, "given": spec(limits={"costUSD": 16.0})},
        "CostLimit", "spent 16.27",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "facts", "reason", "said"), ENDS, ids=[row[0] for row in ENDS])
def test_end(sentence: str, facts: dict[str, Any], reason: str, said: str) -> None:
    verdict = look(**facts)
    assert (verdict.status["phase"], *ready(verdict)) == ("Failed", "False", reason)
    assert said in verdict.status["message"]
    assert verdict.status["completionTime"]
    assert verdict.start is None
    again = look(verdict.status, **{k: v for k, v in facts.items() if k != "minute"}, minute=120)
    assert {**again.status, "cost": None, "ledger": None} == {**verdict.status, "cost": None, "ledger": None}


def test_a_job_that_ends_while_a_pod_runs_takes_the_pod_away() -> None:
    limited = spec(limits={"costUSD": 1.0})
    verdict = look(train=TRAIN, pods=[POD.running(0)], minute=61, given=limited)
    assert verdict.stop == ("train",)
    still = look(verdict.status, train=TRAIN, pods=[POD.running(0)], minute=62, given=limited)
    assert still.stop == ("train",)
    gone = look(still.status, minute=63, given=limited)
    assert gone.stop == ()
    assert gone.status["preemptions"] == 0


def test_the_next_look_at_a_limited_job_is_when_its_limit_is_reached() -> None:
    verdict = look(train=TRAIN, pods=[POD.running(0)], minute=15, given=spec(limits={"runTime": "1h"}))
    assert verdict.again == pytest.approx(45 * 60, abs=2)
    verdict = look(train=TRAIN, pods=[POD.running(0)], minute=15, given=spec(limits={"costUSD": 8.0}))
    assert verdict.again == pytest.approx(15 * 60, abs=2)


@pytest.mark.parametrize("limits", [{"runTime": "2h"}, {"costUSD": 100.0}])
def test_a_raised_limit_lets_the_job_go_on(limits: dict[str, Any]) -> None:
    low = spec(limits={"runTime": "1h"} if "runTime" in limits else {"costUSD": 16.0})
    ended = look(train=TRAIN, pods=[POD.running(0)], minute=61, given=low)
    stopped = look(ended.status, minute=65, given=low)
    resumed = look(stopped.status, minute=70, given=spec(limits=limits), generation=4)
    assert (resumed.status["phase"], resumed.start) == ("Provisioning", "train")
    assert "completionTime" not in resumed.status
    assert resumed.status["observedGeneration"] == 4


def test_raised_retries_let_the_job_go_on_once_the_old_job_is_gone() -> None:
    pods = [POD.failed(1)]
    ended = look(train=TRAIN.failed(), pods=pods, given=spec(limits={"retries": 0}))
    more = spec(limits={"retries": 2})
    first = look(ended.status, train=TRAIN.failed(), pods=pods, given=more, generation=4)
    assert (first.status["phase"], first.stop, first.start) == ("Failed", ("train",), None)
    then = look(first.status, given=more, generation=4)
    assert (then.status["phase"], then.start) == ("Provisioning", "train")


def test_a_job_that_runs_beside_a_status_of_yesterday_is_no_remnant() -> None:
    """Made by a look whose status write did not come through: the end is lifted, and it runs."""
    ended = look(train=TRAIN.failed(), pods=[POD.failed(1)], given=spec(limits={"retries": 0}))
    gone = look(ended.status, given=spec(limits={"retries": 0}))
    new = Pod.of("b", created=20).running(20)
    verdict = look(gone.status, train=TRAIN, pods=[new], minute=21, given=spec(limits={"retries": 1}))
    assert (verdict.status["phase"], verdict.stop) == ("Training", ())
    assert (verdict.status["attempts"], verdict.status["preemptions"]) == (2, 0)


def test_a_job_that_kubernetes_gave_up_is_made_anew_while_retries_are_left() -> None:
    verdict = look(train=TRAIN.failed(), pods=[POD.failed(1)])
    assert (verdict.status["phase"], verdict.stop, verdict.start) == ("Provisioning", ("train",), None)


def test_a_node_repair_that_outlasts_the_job_starts_it_again_later() -> None:
    verdict = look(train=TRAIN.failed(), pods=[POD.rejected()])
    assert (verdict.status["phase"], verdict.stop) == ("Provisioning", ("train",))
    assert ready(verdict) == ("Unknown", "NodeRepair")


def test_suspending_keeps_what_is_done_and_takes_the_rest_away() -> None:
    paused = spec(suspend=True)
    verdict = look(train=TRAIN.complete(), merge=MERGE, pods=[Pod.of("m", "merge").running()], given=paused)
    assert (verdict.status["phase"], verdict.stop) == ("Suspended", ("merge",))
    assert condition(verdict, "Suspended") == "True"
    resumed = look(verdict.status, given=spec(), minute=5)
    assert (resumed.status["phase"], resumed.start) == ("Merging", "merge")


def test_a_slice_that_was_given_back_is_no_preemption_and_no_attempt() -> None:
    paused = spec(suspend=True)
    first = look(train=TRAIN, pods=[POD.running(0)], minute=1)
    second = look(first.status, train=TRAIN, pods=[POD.failed(75, 0, 10)], minute=11, given=paused)
    third = look(second.status, minute=12, given=paused)
    fourth = look(third.status, train=TRAIN, pods=[Pod.of("b", created=20).running(20)], minute=21)
    assert (fourth.status["attempts"], fourth.status["preemptions"]) == (1, 0)
    assert fourth.status["cost"]["chipHours"] == pytest.approx((10 + 1) / 60 * 4, abs=0.01)


def record(**changes: Any) -> Progress:
    base: dict[str, Any] = {"stage": "train", "step": 40, "total_steps": 100, "epoch": 0.4, "loss": 1.25}
    return Progress.model_validate({**base, **changes})


def test_progress_of_the_trainer_is_shown() -> None:
    found = look(
        train=TRAIN,
        pods=[POD.running(0)],
        minute=30,
        progress=record(eta=at(90), checkpoint=25, tokensPerSecond=900.0),
    )
    shown = found.status["progress"]
    assert (shown["step"], shown["totalSteps"], shown["loss"], shown["stage"]) == (40, 100, 1.25, "train")
    assert shown["eta"] == stamp(90)
    assert found.status["checkpoint"] == {"step": 25, "time": stamp(30)}
    assert "step 40 of 100" in found.status["message"]


def test_the_estimate_is_what_was_spent_and_what_is_left_until_the_end() -> None:
    found = look(train=TRAIN, pods=[POD.running(0)], minute=30, progress=record(eta=at(90)))
    assert found.status["cost"] == {"spentUSD": 8.0, "chipHours": 2.0, "estimatedUSD": 24.0}


def test_step_and_loss_of_the_training_stay_while_the_model_is_merged() -> None:
    first = look(train=TRAIN, pods=[POD.running(0)], minute=30, progress=record(step=100, eta=at(90)))
    merging = record(stage="merge", step=7, total_steps=400, loss=None)
    second = look(
        first.status,
        train=TRAIN.complete(),
        merge=MERGE,
        pods=[Pod.of("m", "merge").running()],
        progress=merging,
    )
    assert second.status["progress"] == {
        "stage": "merge",
        "step": 100,
        "totalSteps": 100,
        "epoch": 0.4,
        "loss": 1.25,
    }
    assert second.status["message"] == "merge: 7 of 400"


@pytest.mark.parametrize(("minute", "told"), [(4, "train is running"), (6, "compiling")])
def test_what_an_earlier_pod_said_last_is_no_news_of_the_next(minute: float, told: str) -> None:
    said = record(message="compiling", time=at(minute))
    assert look(train=TRAIN, pods=[POD.running(5)], progress=said).status["message"] == told


def test_a_loss_is_shown_with_six_digits() -> None:
    running = look(train=TRAIN, pods=[POD.running()], progress=record(step=7, loss=0.002771408762782812))
    assert running.status["progress"]["loss"] == 0.00277141
    assert running.status["progress"]["step"] == 7


def test_artifacts_appear_with_their_digests_once_they_are_published() -> None:
    training = look(train=TRAIN, pods=[POD.running(0)])
    assert "artifacts" not in training.status
    done = look(
        train=TRAIN.complete(),
        merge=MERGE.complete(),
        progress=record(stage="merge", artifacts={"merged": "sha", "revision": "abc"}),
    )
    assert done.status["artifacts"]["merged"] == {"uri": "gs://acme/models/bot/merged", "digest": "sha"}
    assert done.status["artifacts"]["revision"] == "abc"


def test_a_finished_job_expires_when_its_time_is_over_and_not_before() -> None:
    kept = spec(ttlSecondsAfterFinished=600)
    done = look(train=TRAIN.complete(), merge=MERGE.complete(), given=kept, minute=0)
    assert done.again == 600
    assert not judge.expired(kept, done.status, at(9.9))
    assert judge.expired(kept, done.status, at(10))
    assert not judge.expired(spec(), done.status, at(1e6))


def test_the_time_of_a_transition_changes_with_the_status_and_not_with_the_message() -> None:
    first = look(train=TRAIN, minute=0)
    second = look(first.status, train=TRAIN, pods=[POD.running(1)], minute=2)
    third = look(second.status, train=TRAIN.complete(), merge=MERGE.complete(), minute=60)
    times = [
        next(c["lastTransitionTime"] for c in v.status["conditions"] if c["type"] == "Ready")
        for v in (first, second, third)
    ]
    assert times == [stamp(0), stamp(0), stamp(60)]


def test_the_cost_names_its_price() -> None:
    found = look(train=TRAIN, pods=[POD.running(0)], minute=15, priced="$1.68 per v5p chip-hour, spot (d, s)")
    assert found.status["cost"]["price"] == "$1.68 per v5p chip-hour, spot (d, s)"


def test_a_look_at_an_unchanged_cluster_gives_the_same_status_but_for_its_cost() -> None:
    first = look(train=TRAIN, pods=[POD.running(0)], minute=1)
    second = look(first.status, train=TRAIN, pods=[POD.running(0)], minute=50)
    assert judge.quiet(first.status) == judge.quiet(second.status)
    assert first.status["cost"] != second.status["cost"]


def test_a_finished_job_is_never_touched_again() -> None:
    done = look(train=TRAIN.complete(), merge=MERGE.complete(), pods=[POD.succeeded(0, 10)], minute=20)
    later = look(
        done.status, train=TRAIN.complete(), merge=MERGE.complete(), pods=[POD.succeeded(0, 10)], minute=900
    )
    assert later.status == done.status
    assert (later.start, later.stop) == (None, ())


@pytest.mark.parametrize("word", ["Failed", "Succeeded"])
def test_a_phase_that_a_hand_wrote_ends_nothing(word: str) -> None:
    first = look(train=TRAIN, pods=[POD.running(0)], minute=1)
    second = look({**first.status, "phase": word}, train=TRAIN, pods=[POD.running(0)], minute=2)
    assert (second.status["phase"], second.stop) == ("Training", ())
    assert second.status["conditions"] == first.status["conditions"]
