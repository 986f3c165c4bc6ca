"""What a change may do: the spec is immutable but for the fields that say otherwise.

The rules stand at the section that holds the field and not at the field itself: a rule at an
optional field is not asked when the field appears or disappears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from tunewright_operator.api.base import Section
from tunewright_operator.api.rules import Transition, value_at
from tunewright_workloads.contract.faults import Fault, show


def immutable(kind: type[Section], but: set[str], what: str) -> tuple[Transition, ...]:
    """A rule for each field of `kind` that must stay as it is."""
    rules = []
    for name, info in kind.model_fields.items():
        key = info.alias or name
        if key in but:
            continue
        always = info.is_required() or "default" in (info.json_schema_extra or {}) or info.default is not None
        same = f"self.{key} == oldSelf.{key}"
        if not always:
            same = f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || {same})"
        rules.append(
            Transition(
                f"immutable-{key}",
                "cannot be changed",
                lambda new, old, name=name: getattr(new, name) == getattr(old, name),
                same,
                (key,),
                f"Create another {what}; of this one only {', '.join(sorted(but))} can change",
            )
        )
    return tuple(rules)


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
