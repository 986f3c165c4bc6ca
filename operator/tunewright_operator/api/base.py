"""What every part of a resource has in common: names, strictness, and the walk over its rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunewright_operator.api.rules import CEL, Findings, Rule, Transition
from tunewright_workloads.contract.faults import UserError

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A mapping of the spec. camelCase in files, snake_case in Python, nothing unknown.

    Strict like the API server: "1" is no number. An explicit null is the same as nothing, because
    the API server prunes it.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, data: Any) -> Any:
        if isinstance(data, dict) and None in data.values():
            return {key: value for key, value in data.items() if value is not None}
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        asked = [rule.kubernetes() for rule in cls.rules if rule.cel is not None]
        asked += [rule.kubernetes() for rule in cls.transitions]
        if asked:
            schema[CEL] = asked
        return schema


class Record(BaseModel):
    """A mapping of the status. The operator writes it; a later version's extra keys are not read."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


def section(kind: type[S], description: str, **extra: Any) -> Any:
    """A field that holds a whole section with defaults throughout: leaving it out is leaving it be.

    The schema's default is `{}`, so that the API server fills the section's own defaults in.
    """
    return Field(default_factory=kind, description=description, json_schema_extra={"default": {}, **extra})


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside Optional[...], list[...], Annotated[...]; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = model_in(inner)
        if found is not None:
            return found
    return None


def sections(kind: type[BaseModel], place: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model at and below `kind` with its place, in the order of the fields; lists end in `[]`."""
    yield place, kind
    for name, info in kind.model_fields.items():
        inner = model_in(info.annotation)
        if inner is not None:
            key = info.alias or name
            many = (
                "[]" if list in (get_origin(a) for a in (info.annotation, *get_args(info.annotation))) else ""
            )
            yield from sections(inner, (f"{place}.{key}" if place else key) + many)


def walk(part: Any, place: str = "") -> Iterator[tuple[str, Section]]:
    """Every section at and below `part` with its place, outermost last (rules speak bottom up)."""
    if isinstance(part, Section):
        for name, info in type(part).model_fields.items():
            key = info.alias or name
            yield from walk(getattr(part, name), f"{place}.{key}" if place else key)
        yield place, part
    elif isinstance(part, list):
        for index, item in enumerate(part):
            yield from walk(item, f"{place}[{index}]")


def judge(part: Section, place: str = "") -> Findings:
    """Asks every rule of every section at and below `part`."""
    findings = Findings()
    for where, inner in walk(part, place):
        for rule in type(inner).rules:
            findings.add(rule, inner, where)
    return findings


class Resource(Section):
    """The base of both kinds. A resource that exists has passed every rule that holds anywhere."""

    @model_validator(mode="after")
    def _rules(self, info: Any) -> Any:
        # `reading.parse` asks the rules itself, because it shows type faults and rules together.
        if not (info.context or {}).get("defer"):
            broken = [f.fault for f in judge(self).items if not f.cluster]
            if broken:
                raise UserError(broken)
        return self


def choices(info: FieldInfo) -> list[Any]:
    """The values of a Literal field, also inside Optional; empty for every other field."""
    found: list[Any] = []

    def look(annotation: Any) -> None:
        if get_origin(annotation) is Literal:
            found.extend(get_args(annotation))
            return
        for inner in get_args(annotation):
            look(inner)

    look(info.annotation)
    return found
