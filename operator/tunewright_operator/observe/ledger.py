"""The account of a job's runs: attempts, preemptions, chip-hours, across every restart.

A run is one start of a stage's pods, a whole slice being one run. Pods are deleted with their
nodes, so what they were is kept in `status.ledger`: open runs one by one, settled ones as sums.
Folding a run into the sums and forgetting it is one status write, so a crash on either side
counts it once. The uids that were folded last are kept: whoever still remembers such a pod (an
operator whose write was done though its answer was lost, or a second one) finds that it is settled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tunewright_operator.observe import pods as looks
from tunewright_operator.observe import times
from tunewright_operator.observe.pods import Finding, Shape

Object = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
STAGE = "tunewright.dev/stage"

_SETTLED = 16
"""Settled runs that are known by uid: no more pods of one job are deleted between two looks."""

_TOGETHER = 300.0
"""Seconds within which the end of one pod of a slice ends the others."""


@dataclass(frozen=True)
class Run:
    """One start. `outcome` is a Shape's value, or `Ended` when we stopped it ourselves."""

    uid: str
    stage: str
    chips: int
    start: str
    end: str | None = None
    outcome: str | None = None

    def hours(self, now: datetime) -> float:
        return times.between(self.start, self.end or now) / 3600


STOPPED = "Stopped"
"""The outcome of a run that we ended: suspended, over a limit, deleted."""


@dataclass(frozen=True)
class Ledger:
    """Open runs and the sums of settled ones.

    chip_hours, run_seconds: of settled runs. failures: by stage. attempts: starts that were not
    the repetition of an interrupted one. last: the outcome of the run that started last.
    settled: uids of the runs that were folded last.
    """

    open: tuple[Run, ...] = ()
    chip_hours: float = 0.0
    run_seconds: float = 0.0
    attempts: int = 0
    preemptions: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    last: str | None = None
    settled: tuple[str, ...] = ()

    @classmethod
    def load(cls, data: Object | None) -> Ledger:
        data = data or {}
        return cls(
            open=tuple(
                Run(r["uid"], r["stage"], r.get("chips", 0), r["start"], r.get("end"), r.get("outcome"))
                for r in data.get("open") or []
            ),
            chip_hours=data.get("chipHours", 0.0),
            run_seconds=data.get("runSeconds", 0.0),
            attempts=data.get("attempts", 0),
            preemptions=data.get("preemptions", 0),
            failures=dict(data.get("failures") or {}),
            last=data.get("last"),
            settled=tuple(data.get("settled") or ()),
        )

    def dump(self) -> Object:
        """Plain data for status; empty fields are left out."""
        runs = [
            {
                k: v
                for k, v in (
                    ("uid", r.uid), ("stage", r.stage), ("chips", r.chips), ("start", r.start), ("end", r.end),
                    ("outcome", r.outcome),
                )
                if v is not None
            }
            for r in self.open
        ]  # fmt: skip
        full = {
            "open": runs,
            "chipHours": round(self.chip_hours, 6),
            "runSeconds": round(self.run_seconds, 1),
            "attempts": self.attempts,
            "preemptions": self.preemptions,
            "failures": dict(sorted(self.failures.items())),
            "last": self.last,
            "settled": list(self.settled),
        }
        return {k: v for k, v in full.items() if v}

    def failed(self, stage: str) -> int:
        """Failures of a stage, settled and open: what is compared with `limits.retries`."""
        return self.failures.get(stage, 0) + sum(
            1 for r in self.open if r.stage == stage and _counts(r.outcome)
        )

    @property
    def interrupted(self) -> int:
        """Runs that were ended from outside, settled and open."""
        return self.preemptions + sum(1 for r in self.open if r.outcome in looks.INTERRUPTED)

    def hours(self, now: datetime) -> float:
        """Chip-hours until now."""
        return self.chip_hours + sum(r.hours(now) * r.chips for r in self.open)

    def seconds(self, now: datetime) -> float:
        """Seconds for which pods of the job ran: waiting and suspended time is not in it."""
        return self.run_seconds + sum(r.hours(now) * 3600 for r in self.open)

    @property
    def chips(self) -> int:
        """Chips held now."""
        return sum(r.chips for r in self.open if r.end is None)


def _counts(outcome: str | None) -> bool:
    return outcome in (Shape.FAILED, Shape.MEMORY, Shape.INPUT, Shape.STORAGE)


def update(
    ledger: Ledger,
    pods: Iterable[Object],
    hosts: dict[str, int],
    now: datetime,
    stopped: bool,
    gone: frozenset[str] = frozenset(),
) -> Ledger:
    """The account after a look at the pods that exist.

    pods:    slim pods of all stages; only the first of a slice (completion index 0) is a run.
    hosts:   machines of a slice by stage: the run's chips are the first pod's times these.
    stopped: we are ending the job ourselves (suspension, a limit), so a run that ends or vanishes
             now did not fail and was not preempted.
    gone:    uids of those of `pods` that are deleted already: what they last showed still counts.
    """
    found = list(pods)
    leaders = {
        p["metadata"]["uid"]: p
        for p in found
        if p["metadata"].get("labels", {}).get(INDEX, "0") == "0"
        and looks.started(p)
        and p["metadata"]["uid"] not in ledger.settled
    }
    runs = {r.uid: r for r in ledger.open}
    fresh = leaders.keys() - runs.keys()
    # What is known started before what is new; of the new, what has ended did so before what runs.
    for uid in sorted(fresh, key=lambda u: _age(leaders[u])):
        pod = leaders[uid]
        stage = pod["metadata"].get("labels", {}).get(STAGE, "")
        chips = (pod.get("spec") or {}).get("chips", 0) * hosts.get(stage, 1)
        runs[uid] = Run(uid, stage, chips, looks.started(pod) or times.show(now))
    result, kept = ledger, []
    for uid, run in runs.items():
        if uid in fresh and (result.attempts == 0 or _counts(result.last)):
            result = replace(result, attempts=result.attempts + 1)
        run = _end(run, leaders.get(uid), found, now, stopped, uid in gone)
        result = replace(result, last=run.outcome)
        if uid in leaders and uid not in gone:
            kept.append(run)
        else:
            result = _fold(result, run)
    if not runs:
        return ledger
    return replace(result, open=tuple(kept))


def _age(pod: Object) -> tuple[str, bool, int]:
    meta = pod["metadata"]
    return meta.get("creationTimestamp", ""), not looks.find(pod).ended, int(meta.get("resourceVersion", 0))


def _end(
    run: Run, leader: Object | None, pods: list[Object], now: datetime, stopped: bool, gone: bool
) -> Run:
    if run.end is not None:
        return run
    if leader is None:  # gone without a word: with its node, or because we deleted it
        return replace(run, end=times.show(now), outcome=STOPPED if stopped else Shape.PREEMPTED.value)
    finding = _of_slice(leader, pods)
    if not finding.ended:
        if not gone:
            return run
        return replace(run, end=times.show(now), outcome=STOPPED if stopped else Shape.PREEMPTED.value)
    ours = stopped and finding.shape in (Shape.PREEMPTED, Shape.FAILED)
    outcome = STOPPED if ours else finding.shape.value
    return replace(run, end=looks.finished(leader) or times.show(now), outcome=outcome)


def _fold(ledger: Ledger, run: Run) -> Ledger:
    seconds = times.between(run.start, run.end or run.start)
    failures = dict(ledger.failures)
    if _counts(run.outcome):
        failures[run.stage] = failures.get(run.stage, 0) + 1
    return replace(
        ledger,
        chip_hours=ledger.chip_hours + seconds / 3600 * run.chips,
        run_seconds=ledger.run_seconds + seconds,
        preemptions=ledger.preemptions + (run.outcome in looks.INTERRUPTED),
        failures=failures,
        settled=(*ledger.settled, run.uid)[-_SETTLED:],
    )


def _of_slice(leader: Object, pods: list[Object]) -> Finding:
    """How a slice ended: when any of its pods was taken away, the others' crashes only followed."""
    own = looks.find(leader)
    if own.shape not in (Shape.FAILED, Shape.PREEMPTED):
        return own
    end = looks.finished(leader)
    stage = leader["metadata"].get("labels", {}).get(STAGE)
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if pod is leader or labels.get(STAGE) != stage or labels.get(INDEX, "0") == "0":
            continue
        finding, other = looks.find(pod), looks.finished(pod)
        close = (
            end is None
            or other is None
            or abs((times.parse(other) - times.parse(end)).total_seconds()) <= _TOGETHER
        )
        if finding.shape in looks.INTERRUPTED and close:
            return finding
    return own
