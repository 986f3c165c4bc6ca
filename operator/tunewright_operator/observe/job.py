"""A FineTuneJob: what its stages show -> its status, and what to do next.

The status is all memory there is. A milestone (`Trained`, `Merged`, `Evaluated`) stands for a
stage that ended well, so that a Job that is cleaned up later is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tunewright_operator.api.job import FineTuneJobSpec
from tunewright_operator.observe import conditions, ledger, stage, times
from tunewright_operator.observe import pods as looks
from tunewright_operator.observe.conditions import Condition, Truth
from tunewright_operator.observe.ledger import Ledger
from tunewright_operator.observe.pods import Shape
from tunewright_operator.observe.stage import Look, State
from tunewright_workloads.contract.progress import Progress

Object = dict[str, Any]

MILESTONES = {"train": "Trained", "merge": "Merged", "evaluate": "Evaluated"}
PHASES = {"train": "Training", "merge": "Merging", "evaluate": "Evaluating"}
LIFTED = {"RunTimeLimit", "CostLimit", "RetriesExhausted"}
"""Ends that a raised limit undoes: the job goes on from its last checkpoint."""

_REPAIR_WAIT = 120.0


@dataclass(frozen=True)
class StageFacts:
    """What is known of a planned stage without looking at the cluster. `hosts`: machines of its slice."""

    name: str
    hosts: int = 1


@dataclass(frozen=True)
class Missing:
    """An object that the job names and that is not there."""

    kind: str
    name: str
    place: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}" ({self.place}) does not exist in this namespace'


@dataclass(frozen=True)
class Facts:
    """Everything that is looked at.

    workloads: slim Job or JobSet by stage. pods: slim pods of all stages;
    gone: those that were deleted since the last look, as they were then.
    invalid:   why the spec cannot be planned; final.
    missing:   references that are not there yet.
    hint:      what the API server's events say where a stage has no pods.
    price:     US dollars a chip-hour; priced: the same in words, with model, date and source.
    artifacts: URI by name, as planned.
    """

    stages: Sequence[StageFacts]
    workloads: Mapping[str, Object | None]
    pods: Sequence[Object] = ()
    gone: Sequence[Object] = ()
    progress: Progress | None = None
    invalid: str | None = None
    missing: Sequence[Missing] = ()
    hint: str | None = None
    price: float = 0.0
    priced: str = ""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    preflight: Object | None = None


@dataclass(frozen=True)
class Verdict:
    """The status as it should be, and what to do once it is written.

    start: the stage whose children must be there. stop: stages whose workload must go.
    again: seconds until a look is due though no event may come.
    """

    status: Object
    start: str | None = None
    stop: tuple[str, ...] = ()
    again: float | None = None


@dataclass(frozen=True)
class _Say:
    """Phase, the Ready condition's reason and message, and whether somebody has to act."""

    phase: str
    reason: str
    message: str
    ready: Truth = "Unknown"
    stalled: bool = False


def observe(meta: Object, spec: FineTuneJobSpec, old: Object, facts: Facts, now: datetime) -> Verdict:
    """Judges a job. `meta` is the slim metadata, `old` the status as it stands."""
    looks = {s.name: stage.look(facts.workloads.get(s.name), _of(facts.pods, s.name)) for s in facts.stages}
    before = ended(old)
    over = before is not None
    ending = spec.suspend or over
    account = ledger.update(
        Ledger.load(old.get("ledger")),
        [*facts.pods, *facts.gone],
        {s.name: s.hosts for s in facts.stages},
        now,
        ending,
        frozenset(p["metadata"]["uid"] for p in facts.gone),
    )
    status = dict(old)
    reached = [name for name in MILESTONES if conditions.true(old, MILESTONES[name])]
    done = [s.name for s in facts.stages if s.name in reached or looks[s.name].state is State.DONE]
    current = next((s.name for s in facts.stages if s.name not in done), None)
    alive = tuple(
        n
        for n, w in facts.workloads.items()
        if w is not None and looks[n].state not in (State.DONE, State.FAILED)
    )

    start: str | None = None
    stop: tuple[str, ...] = ()
    again: float | None = None
    if before == "Succeeded":
        say = _Say("Succeeded", "Succeeded", _word(old, "Ready"), "True")
    elif before == "Failed" and not (lift := _lifted(old, spec, account, facts, now, current)):
        say = _Say("Failed", _reason(old), _word(old, "Ready"), "False", stalled=True)
        stop = alive
    elif facts.invalid:
        say = _Say("Failed", "Invalid", facts.invalid, "False", stalled=True)
        stop = alive
    elif over and lift and current and (looks[current].state is State.FAILED or looks[current].deleting):
        # The ended workload goes first; only then may the job be anything but failed again. One that
        # has not ended is no remnant: it goes on, be it the old one or made by a look whose status
        # write did not come through.
        say = _Say("Failed", _reason(old), _word(old, "Ready"), "False", stalled=True)
        stop = (current,)
    elif current is None:
        say = _Say("Succeeded", "Succeeded", _published(facts), "True")
    elif spec.suspend:
        stop = tuple(n for n in facts.workloads if facts.workloads[n] is not None and n not in done)
        what = (
            "giving the slice back; the checkpoint is being saved" if account.chips or stop else "suspended"
        )
        say = _Say("Suspended", "Suspended", f"{what}. Set spec.suspend to false to go on.")
    else:
        say, start, stop, again = _walk(spec, account, facts, looks[current], current, now)

    if say.phase == "Failed" and before != "Failed":
        stop = tuple(n for n in facts.workloads if n in alive) or stop
    finished = say.phase in ("Succeeded", "Failed")
    if finished and not over:
        status["completionTime"] = times.show(now)
    elif not finished:
        status.pop("completionTime", None)
    _fill(status, spec, facts, account, done, current, say, meta, now)
    ttl = _ttl(spec, status, now)
    if ttl is not None:
        again = ttl if again is None else min(again, ttl)
    return Verdict(status, start, stop, again)


def ended(old: Object) -> str | None:
    """`Succeeded` or `Failed` once the job is over. The condition decides and not the word alone:
    what we wrote has both, what a hand changed has not."""
    ready = (conditions.find(old, "Ready") or {}).get("status")
    phase = old.get("phase")
    if (phase, ready) in (("Succeeded", "True"), ("Failed", "False")):
        return str(phase)
    return None


def milestones(status: Object) -> set[str]:
    """The stages that ended well, as the status has it."""
    return {name for name, kind in MILESTONES.items() if conditions.true(status, kind)}


def expired(spec: FineTuneJobSpec, status: Object, now: datetime) -> bool:
    """Whether the finished job has outlived its time to live."""
    left = _ttl(spec, status, now)
    return left is not None and left <= 0


def _walk(
    spec: FineTuneJobSpec, account: Ledger, facts: Facts, look: Look, current: str, now: datetime
) -> tuple[_Say, str | None, tuple[str, ...], float | None]:
    """A job that is on its way: what it says, which stage to start, which to stop, when to look again."""
    phase = PHASES[current]
    limit = _limit(spec, account, facts.price, now)
    if limit and current == "train":
        return _Say("Failed", limit[0], limit[1], "False", stalled=True), None, (current,), None
    failures = account.failed(current)
    if look.state is State.FAILED or failures > spec.limits.retries:
        if look.fatal or look.reason == Shape.INPUT:
            reason = "EvaluationGate" if current == "evaluate" and look.reason == Shape.INPUT else look.reason
            return _Say("Failed", reason, look.message, "False", stalled=True), None, (current,), None
        if failures > spec.limits.retries:
            said = look.message or f"{current} failed"
            message = (
                f"{failures} attempts at {current} failed, and limits.retries allows {spec.limits.retries}. "
                f"The last one: {said} Fix the cause and raise limits.retries to go on from the last checkpoint."
            )
            return _Say("Failed", "RetriesExhausted", message, "False", stalled=True), None, (current,), None
        # The Job's own patience is over, ours is not: it is made anew and goes on from its checkpoint.
        wait = _REPAIR_WAIT if look.reason == Shape.REPAIR else None
        say = _Say("Provisioning", look.reason or "Restarting", f"starting again: {look.message}")
        return say, None, (current,), wait
    if look.deleting:
        return _Say("Provisioning", "Restarting", f"the old {current} job is going away"), None, (), None
    again = _next_limit(spec, account, facts.price, now) if current == "train" else None
    if look.state is State.ABSENT:
        if facts.missing:
            message = "; ".join(str(m) for m in facts.missing) + ". The job goes on once it is there."
            say = _Say("Pending", "ReferenceNotFound", message, "False", stalled=True)
            return say, None, (), 10.0
        # In the words of the look that follows: what is made right after must not be a transition.
        queue = spec.queue.name if spec.queue and current in ("train", "evaluate") else None
        if queue:
            return _Say("Queued", "Queued", stage.queued(queue)), current, (), again
        say = _Say("Provisioning" if current == "train" else phase, "Creating", stage.CREATING)
        return say, current, (), again
    if look.state is State.QUEUED:
        return _Say("Queued", "Queued", look.message), current, (), again
    if look.state is State.HELD:
        return _Say("Suspended", "Held", look.message), current, (), again
    if look.state is State.PROVISIONING:
        message = look.message
        if facts.missing:
            message = "; ".join(str(m) for m in facts.missing)
            say = _Say("Pending", "ReferenceNotFound", message, "False", stalled=True)
            return say, current, (), 10.0
        if look.reason == "Creating" and facts.hint:
            say = _Say("Provisioning", "PodsRefused", f"no pod could be created: {facts.hint}", "False", True)
            return say, current, (), 30.0
        say = _Say(
            "Provisioning" if current == "train" else phase,
            look.reason,
            message,
            "False" if look.stuck else "Unknown",
            look.stuck,
        )
        if look.reason == "Creating":
            again = 15.0 if again is None else min(again, 15.0)
        return say, current, (), again
    return _Say(phase, phase, _going(current, facts)), current, (), again


def _of(pods: Sequence[Object], name: str) -> list[Object]:
    return [p for p in pods if p["metadata"].get("labels", {}).get(ledger.STAGE) == name]


def _limit(spec: FineTuneJobSpec, account: Ledger, price: float, now: datetime) -> tuple[str, str] | None:
    kept = "The last checkpoint is kept; raise the limit to go on from it."
    limit = spec.limits.run_seconds
    if limit is not None and account.seconds(now) >= limit:
        ran = times.human(account.seconds(now))
        return "RunTimeLimit", f"limits.runTime of {spec.limits.run_time} is used up (ran {ran}). {kept}"
    dollars = spec.limits.cost_usd
    spent = account.hours(now) * price
    if dollars is not None and spent >= dollars:
        return "CostLimit", f"limits.costUSD of {dollars:g} is used up (spent {spent:.2f}). {kept}"
    return None


def _next_limit(spec: FineTuneJobSpec, account: Ledger, price: float, now: datetime) -> float | None:
    """Seconds until a limit is reached at the present rate; None while nothing runs or nothing limits."""
    running = [r for r in account.open if r.end is None]
    if not running:
        return None
    left = []
    limit = spec.limits.run_seconds
    if limit is not None:
        left.append((limit - account.seconds(now)) / len(running))
    rate = account.chips * price / 3600
    if spec.limits.cost_usd is not None and rate > 0:
        left.append((spec.limits.cost_usd - account.hours(now) * price) / rate)
    return max(0.0, min(left)) + 0.5 if left else None


def _lifted(
    old: Object, spec: FineTuneJobSpec, account: Ledger, facts: Facts, now: datetime, current: str | None
) -> bool:
    """Whether the limit that ended the job has been raised above what was used."""
    reason = _reason(old)
    if reason not in LIFTED or current is None:
        return False
    if _limit(spec, account, facts.price, now) is not None:
        return False
    return account.failed(current) <= spec.limits.retries


def _going(current: str, facts: Facts) -> str:
    record = facts.progress
    begun = [looks.started(p) for p in _of(facts.pods, current) if not looks.find(p).ended]
    since = max((times.parse(start) for start in begun if start), default=None)
    # What an earlier pod said last ("stopped by SIGTERM") is no news of this one.
    if record is None or record.stage != current or (since is not None and record.time < since):
        return f"{current} is running"
    if record.message:
        return record.message
    if current == "train" and record.total_steps:
        loss = f", loss {record.loss:.4g}" if record.loss is not None else ""
        return f"step {record.step} of {record.total_steps}{loss}"
    if record.total_steps:
        return f"{current}: {record.step} of {record.total_steps}"
    return f"{current} is running"


def _published(facts: Facts) -> str:
    merged = facts.artifacts.get("merged") or facts.artifacts.get("adapter")
    return f"published at {merged}" if merged else "done"


def _fill(
    status: Object,
    spec: FineTuneJobSpec,
    facts: Facts,
    account: Ledger,
    done: Sequence[str],
    current: str | None,
    say: _Say,
    meta: Object,
    now: datetime,
) -> None:
    generation = meta.get("generation", 0)
    over = say.phase in ("Succeeded", "Failed")
    status["phase"], status["message"] = say.phase, say.message[:4096]
    status["observedGeneration"] = generation
    status["ledger"] = account.dump()
    if not status["ledger"]:
        del status["ledger"]
    status["attempts"], status["preemptions"] = account.attempts, account.interrupted
    if account.open and "startTime" not in status:
        status["startTime"] = min(r.start for r in account.open)
    if facts.preflight:
        status["preflight"] = facts.preflight
    _progress(status, facts.progress, current, now)
    _cost(status, account, facts, over, now)
    _artifacts(status, facts, done)
    said = [
        Condition("Ready", say.ready, say.reason, say.message),
        Condition(
            "Reconciling",
            "False" if over or say.stalled or say.phase == "Suspended" else "True",
            say.reason,
            say.message,
        ),
        Condition(
            "Stalled", "True" if say.stalled else "False", say.reason, say.message if say.stalled else ""
        ),
        Condition(
            "Suspended",
            "True" if say.phase == "Suspended" else "False",
            "Suspended" if say.phase == "Suspended" else "Active",
        ),
    ]
    for name in done:
        if not conditions.true(status, MILESTONES[name]):
            said.append(Condition(MILESTONES[name], "True", "Completed", f"{name} is done"))
    status["conditions"] = conditions.merge(status.get("conditions") or [], said, generation, now)


def _progress(status: Object, record: Progress | None, current: str | None, now: datetime) -> None:
    shown = dict(status.get("progress") or {})
    if record is not None:
        data = record.model_dump(mode="json", by_alias=True, exclude_none=True)
        if record.stage == "train":
            for key in ("step", "totalSteps", "epoch", "loss", "evalLoss", "tokensPerSecond", "eta"):
                if key in data:
                    shown[key] = _short(data[key])
        elif record.stage == "evaluate" and "evalLoss" in data:
            shown["evalLoss"] = _short(data["evalLoss"])
        if record.stage == "train" and record.checkpoint is not None:
            before = (status.get("checkpoint") or {}).get("step")
            if before != record.checkpoint:
                status["checkpoint"] = {"step": record.checkpoint, "time": times.show(now)}
        if isinstance(shown.get("eta"), str):
            shown["eta"] = times.show(times.parse(shown["eta"]))
    if current != "train":
        shown.pop("eta", None)
        shown.pop("tokensPerSecond", None)
    if shown:
        shown["stage"] = current or shown.get("stage") or "train"
        status["progress"] = shown


def _short(value: Any) -> Any:
    """Six digits of a fraction: what more a float has is noise in a column of `kubectl get`."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _cost(status: Object, account: Ledger, facts: Facts, over: bool, now: datetime) -> None:
    hours, price = account.hours(now), facts.price
    spent = round(hours * price, 2)
    cost: Object = {"spentUSD": spent, "chipHours": round(hours, 3)}
    if facts.priced:
        cost["price"] = facts.priced
    eta = (status.get("progress") or {}).get("eta")
    if over:
        cost["estimatedUSD"] = spent
    elif eta and account.chips:
        left = times.between(now, eta) / 3600
        cost["estimatedUSD"] = round((hours + account.chips * left) * price, 2)
    elif "estimatedUSD" in (status.get("cost") or {}):
        cost["estimatedUSD"] = max(spent, status["cost"]["estimatedUSD"])
    status["cost"] = cost


def _artifacts(status: Object, facts: Facts, done: Sequence[str]) -> None:
    shown = dict(status.get("artifacts") or {})
    record = facts.progress
    digests = getattr(record, "artifacts", None) or {}
    for name, by in (("adapter", "train"), ("merged", "merge")):
        if by not in done or name not in facts.artifacts:
            continue
        entry = dict(shown.get(name) or {}, uri=facts.artifacts[name])
        if name in digests:
            entry["digest"] = digests[name]
        shown[name] = entry
    for key, name in (("baseDigest", "base"), ("datasetDigest", "dataset"), ("revision", "revision")):
        if name in digests:
            shown[key] = digests[name]
    if shown:
        status["artifacts"] = shown


def _ttl(spec: FineTuneJobSpec, status: Object, now: datetime) -> float | None:
    if spec.ttl_seconds_after_finished is None or ended(status) is None or not status.get("completionTime"):
        return None
    end = times.parse(status["completionTime"]) + timedelta(seconds=spec.ttl_seconds_after_finished)
    return (end - now).total_seconds()


def _reason(old: Object) -> str:
    return (conditions.find(old, "Ready") or {}).get("reason", "Failed")


def _word(old: Object, kind: str) -> str:
    return (conditions.find(old, kind) or {}).get("message", "")


def quiet(status: Object) -> Object:
    """The status without what changes by itself as time passes: is it worth a write of its own?"""
    return conditions.quiet(status, "progress", "cost", "checkpoint", "message")


def blocked(verdict: Verdict, meta: Object, reason: str, message: str, now: datetime) -> Verdict:
    """The verdict on a job whose children cannot be made until somebody acts."""
    status = conditions.blocked(verdict.status, meta, reason, message, now)
    return Verdict(status, None, (), 30.0)
