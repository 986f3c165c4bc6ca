"""What a change may do: the spec is immutable but for the fields that say otherwise.

The rules stand at the section that holds the field and not at the field itself: a rule at an
optional field is not asked when the field appears or disappears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tunewright_operator.api.base import Section
from tunewright_operator.api.rules import Transition, value_at
from tunewright_workloads.contract.faults import Fault, show


def immutable(kind: type[Section], but: set[str], what: str) -> tuple[Transition, ...]:
    """A rule for each field of `kind` that must stay as it is."""
    allowed = ", ".join(sorted(but))

    def rule(name: str, key: str, always: bool) -> Transition:
        same = f"self.{key} == oldSelf.{key}"
        return Transition(
            f"immutable-{key}",
            "cannot be changed",
            lambda new, old: getattr(new, name) == getattr(old, name),
            same if always else f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || {same})",
            (key,),
            f"Create another {what}; of this one only {allowed} can change",
        )

    def always(info: FieldInfo) -> bool:
        extra = info.json_schema_extra
        filled = isinstance(extra, dict) and "default" in extra
        return info.is_required() or filled or info.get_default() is not None

    return tuple(
        rule(name, info.alias or name, always(info))
        for name, info in kind.model_fields.items()
        if (info.alias or name) not in but
    )


def raised(key: str, holds: Callable[[Any, Any], bool], cel: str) -> Transition:
    """A rule that a limit only goes up (without one there is none)."""
    return Transition(
        f"raised-{key}",
        "can only be raised or removed",
        holds,
        cel,
        (key,),
        "Suspend or delete the job to end it sooner",
    )


def changes(new: Section, old: Section, place: str = "") -> list[Fault]:
    """What of the change from `old` to `new` is not allowed."""
    faults = []
    for where, a, b in _pairs(new, old, place):
        for rule in type(a).transitions:
            if not rule.holds(a, b):
                path = rule.fields[0]
                value = value_at(a, path)
                shown = None if value is None or isinstance(value, BaseModel) else show(value)
                faults.append(Fault(f"{where}.{path}" if where else path, rule.text, shown, rule.fix))
    return faults


def _pairs(new: Any, old: Any, place: str) -> Iterator[tuple[str, Section, Section]]:
    if not isinstance(new, Section) or not isinstance(old, Section):
        return
    yield place, new, old
    for name, info in type(new).model_fields.items():
        key = info.alias or name
        yield from _pairs(getattr(new, name), getattr(old, name), f"{place}.{key}" if place else key)
