"""`metadata`: the API server's own; here only what is written by hand is checked."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import Field

from tunewright_operator.api.base import Section
from tunewright_operator.api.rules import Rule

GROUP: Final = "tunewright.dev"
VERSION: Final = "v1alpha1"
GROUP_VERSION: Final = "tunewright.dev/v1alpha1"


class Metadata(Section):
    """ObjectMeta. The fields that the API server fills in are taken as they come."""

    name: str = Field(
        min_length=1, max_length=253, description="Name, unique in the namespace.", examples=["support-bot"]
    )
    namespace: str | None = Field(None, max_length=63, description="Namespace.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    generate_name: str | None = None
    self_link: str | None = None


def name_rules(*, service: bool) -> tuple[Rule, ...]:
    """The name becomes a label's value on every child, and a Service's name for an endpoint."""
    first = "[a-z]" if service else "[a-z0-9]"
    text = "a letter" if service else "a letter or digit"
    regex = f"{first}([-a-z0-9]*[a-z0-9])?"
    compiled = re.compile(regex, re.ASCII)
    return (
        Rule(
            "name-characters",
            f"must be lower-case letters, digits and '-', beginning with {text} and ending with a letter or digit",
            lambda r: compiled.fullmatch(r.metadata.name) is not None,
            f"self.metadata.name.matches(r'^{regex}$')",
            fields=("metadata.name",),
        ),
        Rule(
            "name-length",
            "must be at most 63 characters: it is a label of every child",
            lambda r: len(r.metadata.name) <= 63,
            "self.metadata.name.size() <= 63",
            fields=("metadata.name",),
        ),
    )
