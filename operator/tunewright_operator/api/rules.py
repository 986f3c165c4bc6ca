"""Rules: what must hold beyond types and bounds, stated once for both judges.

A `Rule` holds the Python predicate that judges offline, the CEL expression that the API server
judges with, and the one message of both, so that `tunewright plan` and `kubectl apply` cannot say
different things. Rules about one value stand in its `Annotated` type; rules between fields stand
in the `rules` of the model that holds the fields; rules about a change stand in `transitions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tunewright_workloads.contract.faults import Fault, UserError, show

CEL = "x-kubernetes-validations"
PRESERVE = "x-kubernetes-preserve-unknown-fields"


def quoted(text: str) -> str:
    """A CEL string literal; raw, so that a regular expression stays readable in the CRD."""
    return f"r'{text}'" if "'" not in text else f'r"{text}"'


def listed(items: Sequence[object] | frozenset[str]) -> str:
    """A CEL list literal of strings or numbers."""
    return "[" + ", ".join(f"'{i}'" if isinstance(i, str) else str(i) for i in items) + "]"


def mapped(items: Mapping[str, object]) -> str:
    """A CEL map literal with string keys; values are lists, strings or numbers."""
    values = {
        k: listed(v) if isinstance(v, (list, tuple)) else (f"'{v}'" if isinstance(v, str) else v)
        for k, v in items.items()
    }
    return "{" + ", ".join(f"'{k}': {v}" for k, v in values.items()) + "}"


@dataclass(frozen=True)
class Rule:
    """One thing that must hold of a value, or between the fields of a section.

    name:   unique and stable; tests and documentation go by it.
    text:   what must hold, to be read after the place: "must be ...".
    holds:  the judge offline. Gets the value (of an Annotated type) or the section. A section is
            complete when it is asked: its own fields have passed their own rules, or the rule is
            not asked.
    cel:    the judge in the API server, over `self`; None when CEL cannot know (then `offline`
            says why).
    fields: what is read, as camelCase paths below the section; the first is where the fault shows.
    fix:    the way out, the same for everybody.
    hint:   a better `fix` where the value tells one; shown offline only.
    cluster: holds only where pods run, not on a laptop.
    """

    name: str
    text: str
    holds: Callable[[Any], bool]
    cel: str | None = None
    fields: tuple[str, ...] = ()
    fix: str | None = None
    hint: Callable[[Any], str | None] | None = None
    offline: str | None = None
    cluster: bool = False
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.cel is None) == (self.offline is None):
            raise TypeError(f"rule {self.name}: give the CEL expression or the reason why there is none")

    @property
    def message(self) -> str:
        """What the API server says: the rule and the way out, on one line."""
        return f"{self.text}. {self.fix}" if self.fix else self.text

    def kubernetes(self) -> dict[str, str]:
        """One entry of `x-kubernetes-validations`."""
        entry = {"rule": self.cel or "", "message": self.message}
        place = self.fields[0] if self.fields else ""
        if place.startswith("metadata."):
            # The schema of metadata is the API server's own: it takes no path into it.
            entry["message"] = f"{place} {self.message}"
        elif place:
            entry["fieldPath"] = f".{place}"
        if self.reason:
            entry["reason"] = self.reason
        return entry

    def fault(self, place: str, value: Any, judged: Any) -> Fault:
        """What is said offline, about `value` at `place`."""
        hint = self.hint(judged) if self.hint else None
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return Fault(place, self.text, None if value is None else show(value), hint or self.fix)

    # The two hooks that make a Rule usable as `Annotated[str, Rule(...)]`.

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._judge, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        if self.cel is not None:
            schema.setdefault(CEL, []).append(self.kubernetes())
        return schema

    def _judge(self, value: Any) -> Any:
        if not self.holds(value):
            raise UserError(self.fault("", value, value))
        return value


class Rules(tuple[Rule, ...]):
    """Several rules about one value; the first that is broken speaks."""

    __slots__ = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        for rule in self:
            schema = core_schema.no_info_after_validator_function(rule._judge, schema)
        return schema

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        schema.setdefault(CEL, []).extend(rule.kubernetes() for rule in self if rule.cel is not None)
        return schema


def pattern(name: str, text: str, regex: str, *, fix: str | None = None) -> Rule:
    """A rule that a whole string matches `regex` (the common ground of Python and RE2).

    Why a CEL rule and not the schema's `pattern`: the API server then shows the message and not
    the expression.
    """
    compiled = re.compile(regex, re.ASCII)
    return Rule(
        name,
        text,
        lambda value: compiled.fullmatch(value) is not None,
        f"self.matches({quoted('^' + regex + '$')})",
        fix=fix,
    )


@dataclass(frozen=True)
class Transition:
    """What a change of a resource may do. `holds(new, old)` gets the section that the rule stands in."""

    name: str
    text: str
    holds: Callable[[Any, Any], bool]
    cel: str
    fields: tuple[str, ...]
    fix: str | None = None

    @property
    def message(self) -> str:
        return f"{self.text}. {self.fix}" if self.fix else self.text

    def kubernetes(self) -> dict[str, str]:
        return {
            "rule": self.cel,
            "message": self.message,
            "fieldPath": "." + self.fields[0],
            "reason": "FieldValueForbidden",
        }


@dataclass(frozen=True)
class Finding:
    """A rule that was broken: the fault, and the places that the rule had read."""

    fault: Fault
    reads: tuple[str, ...]
    cluster: bool = False


@dataclass
class Findings:
    """What a walk over a resource found."""

    items: list[Finding] = field(default_factory=list)

    def add(self, rule: Rule, section: Any, place: str) -> None:
        def absolute(path: str) -> str:
            return f"{place}.{path}" if place and path else (path or place)

        try:
            good = rule.holds(section)
        except UserError:
            good = True  # what it reads is already a fault of its own
        if good:
            return
        path = rule.fields[0] if rule.fields else ""
        value = value_at(section, path) if path else None  # a whole section says nothing
        fault = rule.fault(absolute(path), value, section)
        self.items.append(
            Finding(fault, tuple(absolute(p) for p in rule.fields) or (place,), cluster=rule.cluster)
        )


def value_at(section: Any, path: str) -> Any:
    """The value at a camelCase path below a section, or None."""
    current = section
    for part in path.split(".") if path else ():
        if not isinstance(current, BaseModel):
            return None
        for name, info in type(current).model_fields.items():
            if part == (info.alias or name):
                current = getattr(current, name)
                break
        else:
            return None
    return current
