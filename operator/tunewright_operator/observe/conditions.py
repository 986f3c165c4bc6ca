"""Conditions as kstatus, Argo CD, Flux and `kubectl wait` read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tunewright_operator.observe import times

Truth = Literal["True", "False", "Unknown"]
_LIMIT = 32768


@dataclass(frozen=True)
class Condition:
    """One condition. `reason` is one CamelCase word, `message` says what happened and what to do."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def merge(
    old: list[dict[str, Any]], new: Iterable[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The list to write: `lastTransitionTime` changes with the status only; a condition that `new`
    does not name keeps standing (it is a milestone that was reached)."""
    known = {c["type"]: c for c in old}
    for one in new:
        before = known.get(one.type)
        same = before is not None and before.get("status") == one.status
        known[one.type] = {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message[:_LIMIT],
            "observedGeneration": generation,
            "lastTransitionTime": before["lastTransitionTime"] if same and before else times.show(now),
        }
    return list(known.values())


def find(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((c for c in status.get("conditions") or [] if c.get("type") == kind), None)


def true(status: dict[str, Any], kind: str) -> bool:
    """Whether the condition holds."""
    found = find(status, kind)
    return found is not None and found.get("status") == "True"


def quiet(status: dict[str, Any], *fields: str) -> dict[str, Any]:
    """The status without `fields` and without the messages of its conditions."""
    shown = {k: v for k, v in status.items() if k not in fields}
    shown["conditions"] = [
        {k: v for k, v in c.items() if k != "message"} for c in status.get("conditions") or []
    ]
    return shown


def blocked(
    status: dict[str, Any], meta: dict[str, Any], reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """The status of a resource whose children cannot be made until somebody acts."""
    merged = merge(status.get("conditions") or [], _stalled(reason, message), meta.get("generation", 0), now)
    return dict(status, phase="Pending", message=message[:4096], conditions=merged)


def unreadable(meta: dict[str, Any], old: dict[str, Any], why: str, now: datetime) -> dict[str, Any]:
    """The status of a resource whose spec this version cannot read: its children stay as they are."""
    generation = meta.get("generation", 0)
    status = {"phase": "Pending", **old, "message": why[:4096], "observedGeneration": generation}
    status["conditions"] = merge(old.get("conditions") or [], _stalled("Unreadable", why), generation, now)
    return status


def _stalled(reason: str, message: str) -> list[Condition]:
    """What is said of a resource that waits for somebody."""
    return [
        Condition("Ready", "False", reason, message),
        Condition("Reconciling", "False", reason, message),
        Condition("Stalled", "True", reason, message),
    ]
