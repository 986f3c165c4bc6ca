"""Whatever is done to a good resource, the answer is a resource or a UserError, never a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.good_specs import FULL_ENDPOINT, FULL_JOB
from tunewright_operator import api
from tunewright_workloads.contract.faults import UserError


def paths(node: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a document."""
    found = [at] if at else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += paths(value, (*at, key))
    return found


_leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 2, 4, 7, 8, 16, 64, 100, 1024]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["auto", "cpu", "v6e", "h100", "2x4", "4x4", "0x0x0", "gs://a", "12h", "custom", "no", "1e-4"]
    ),
)
_value = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutants(draw: st.DrawFn) -> dict[str, Any]:
    """A full resource with one to four places replaced, removed, or added."""
    data: dict[str, Any] = copy.deepcopy(draw(st.sampled_from([FULL_JOB, FULL_ENDPOINT])))
    for _ in range(draw(st.integers(1, 4))):
        places = paths(data)
        *path, last = draw(st.sampled_from(places))
        holder: Any = data
        for part in path:
            holder = holder[part]
        action = draw(st.sampled_from(["replace", "remove", "add", "rename"]))
        if action == "replace":
            holder[last] = draw(_value)
        elif action == "remove" and isinstance(holder, dict):
            del holder[last]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(st.text(min_size=1, max_size=8))] = draw(_value)
        elif action == "rename" and isinstance(holder, dict):
            holder[str(last) + draw(st.sampled_from(["s", "_", "X"]))] = holder.pop(last)
        if not data:
            break
    return data


def check(call: Any) -> None:
    try:
        found = call()
    except UserError as error:
        assert error.faults
        for fault in error.faults:
            assert fault.place
            assert fault.rule
            assert "Traceback" not in str(fault)
    else:
        for one in found:
            # What is accepted stays what it is when it is written down and read again.
            again = api.parse(type(one), json.loads(one.model_dump_json(by_alias=True, exclude_none=True)))
            assert again == one


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=True)
@given(mutants())
def test_a_mutant_is_valid_or_refused(data: dict[str, Any]) -> None:
    for kind in api.KINDS.values():
        check(lambda kind=kind: [api.parse(kind, data, "x: ")])


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=True)
@given(mutants())
def test_a_mutant_as_text_is_valid_or_refused(data: dict[str, Any]) -> None:
    check(lambda: api.load(json.dumps(data) + "\n", name="x"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(
            [
                *list("{}[]:,#&*!|>'\"%@`-? \n\t"),
                "a",
                "kind: FineTuneJob\n",
                "---\n",
                "<<: *a",
                "&a ",
                "spec:\n  ",
                "010",
                "no",
                "\x85",
                "\ufeff",
                "é",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_valid_or_refused(text: str) -> None:
    check(lambda: api.load(text + "\n", name="x"))
