"""Rules: each is proved by a row of the table, and the values' rules agree with the contract."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from support.bad_specs import TABLE
from tunewright_operator import api
from tunewright_operator.api import values
from tunewright_operator.api.base import Section, sections
from tunewright_operator.api.rules import CEL, Rule
from tunewright_operator.api.schema import structural
from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import UserError


def section_rules() -> list[tuple[str, Rule]]:
    """Every rule of every section of both kinds, once, with where it stands."""
    found: dict[tuple[str, str], tuple[str, Rule]] = {}
    for kind in api.KINDS.values():
        for place, part in sections(kind):
            if issubclass(part, Section):
                for rule in part.rules:
                    found.setdefault((rule.name, rule.text), (f"{kind.__name__}.{place}", rule))
    return list(found.values())


def value_messages() -> set[str]:
    """The messages of all rules that stand at a single value."""
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") != "object":
                found.update(entry["message"] for entry in node.get(CEL, []))
            for inner in node.values():
                look(inner)
        elif isinstance(node, list):
            for inner in node:
                look(inner)

    for kind in api.KINDS.values():
        look(structural(kind))
    return found


@pytest.mark.parametrize("rule", [r for _, r in section_rules()], ids=lambda rule: rule.name)
def test_every_rule_between_fields_is_broken_by_a_row_of_the_table(rule: Rule) -> None:
    covered = [bad.name for bad in TABLE if bad.message in rule.message]
    # The four generations of TPUs share two rules that are made by one function.
    siblings = [r for _, r in section_rules() if r.name.rpartition("-")[0] == rule.name.rpartition("-")[0]]
    if rule.name.startswith(("topology-", "chips-per-host-")):
        covered += [bad.name for bad in TABLE for r in siblings if bad.message in r.message]
    assert covered, f"no row of tests/support/bad_specs.py breaks {rule.name}: {rule.message}"


@pytest.mark.parametrize("message", sorted(value_messages()))
def test_every_rule_about_a_value_is_broken_by_a_row_of_the_table(message: str) -> None:
    assert [bad.name for bad in TABLE if bad.message in message], f"no row breaks: {message}"


def test_names_of_rules_are_unique() -> None:
    names = [rule.name for _, rule in section_rules()]
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {"name-characters"}  # one for each kind, with its own first character


def test_what_a_rule_reads_are_fields_that_exist() -> None:
    for kind in api.KINDS.values():
        places = {
            f"{place}.{info.alias or name}".lstrip(".")
            for place, part in sections(kind)
            for name, info in part.model_fields.items()
        }
        for place, part in sections(kind):
            for rule in getattr(part, "rules", ()):
                for field in rule.fields:
                    assert not field or f"{place}.{field}".lstrip(".") in places, (rule.name, field)


def test_a_rule_needs_a_judge_in_the_api_server_or_a_reason() -> None:
    with pytest.raises(TypeError, match="give the CEL expression or the reason"):
        Rule("x", "must be", bool)
    with pytest.raises(TypeError, match="give the CEL expression or the reason"):
        Rule("x", "must be", bool, "self", offline="why")


# -- values ------------------------------------------------------------------------------------------

READ, WRITE = TypeAdapter(values.ReadUri), TypeAdapter(values.WriteUri)

_piece = st.sampled_from(
    [
        "gs",
        "hf",
        "pvc",
        "file",
        "sample",
        "s3",
        "://",
        ":/",
        "/",
        "//",
        "a",
        "acme",
        "A",
        "..",
        ".",
        "-",
        "_",
        "bucket-1",
        "faq",
        "x.jsonl",
        " ",
        "\n",
        "\x00",
        "é",
        "org/name",
        "?",
        "%2e",
        "~",
    ]
)
_uris = st.one_of(
    st.lists(_piece, max_size=8).map("".join),
    st.tuples(
        st.sampled_from(["gs://", "hf://", "pvc://", "file://", "sample://"]), st.lists(_piece, max_size=6)
    ).map(lambda parts: parts[0] + "".join(parts[1])),
    st.text(max_size=30),
)


def accepts(adapter: TypeAdapter[str], value: str) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


@settings(derandomize=True, max_examples=500, deadline=None)
@given(_uris)
def test_a_uri_that_the_rules_accept_can_be_parsed(value: str) -> None:
    if accepts(READ, value):
        uris.parse(value)
    if accepts(WRITE, value):
        uris.parse(value, writable=True)
        assert accepts(READ, value)


@pytest.mark.parametrize(
    "value",
    [
        "gs://acme/a b",
        "gs://acme",
        "hf://google/gemma-4-31B-it",
        "hf://a/b/c.jsonl",
        "pvc://c/x",
        "pvc://a.b/x/y",
        "file:///x",
        "sample://faq",
        "gs://acme/x/",
        "gs://acme/.hidden/..x",
        "gs://acme/é",
    ],
)
def test_common_uris_are_accepted_by_both(value: str) -> None:
    spaced = " " in value
    assert accepts(READ, value) is not spaced
    uris.parse(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43200), ("90m", 5400), ("1h30m", 5400), ("1h1m1s", 3661), ("0h60s", 60)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert values.seconds(text) == seconds
    TypeAdapter(values.Duration).validate_python(text)


@pytest.mark.parametrize(
    "text",
    ["", "12", "h", "12 h", "1.5h", "-1h", "2d", "30m1h", "1h\n", "1H", "59s", "0h", "8761h", "9" * 20 + "h"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(values.Duration).validate_python(text)


@pytest.mark.parametrize("value", [0, 2, "2", "500m", "0.5", "16Gi", "1.5Ti", "100M"])
def test_quantities_are_accepted(value: int | str) -> None:
    assert TypeAdapter(values.Quantity).validate_python(value) == value


@pytest.mark.parametrize(
    "value", [-1, "", "Gi", "16GB", "1e3", "1 Gi", "-2", ".5", 1.5, True, None, [], "1" * 40]
)
def test_what_is_no_quantity_is_refused(value: Any) -> None:
    from pydantic import ConfigDict, create_model

    strict = create_model("Strict", __config__=ConfigDict(strict=True), q=(values.Quantity, ...))
    with pytest.raises((ValidationError, UserError)):
        strict(q=value)
