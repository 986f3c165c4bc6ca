"""Merge patches and comparisons of plain objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_operator.reconcile.patches import covers, digest, merge_patch

LEAF = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.lists(st.integers(), max_size=3))
OBJECTS = st.recursive(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), LEAF, max_size=4),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), st.one_of(LEAF, inner), max_size=4),
    max_leaves=12,
)


def apply(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7386, as the API server does it."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = apply(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result


@given(OBJECTS, OBJECTS)
def test_a_patch_turns_the_old_object_into_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply(old, merge_patch(old, new)) == new


@given(OBJECTS)
def test_nothing_is_patched_where_nothing_differs(old: dict[str, Any]) -> None:
    assert merge_patch(old, old) == {}


@given(OBJECTS)
def test_an_object_covers_itself(body: dict[str, Any]) -> None:
    assert covers(body, body)


COVERED = [
    ("defaults of the server are no difference", {"a": 1, "b": 2}, {"a": 1}, True),
    ("a changed value is one", {"a": 2}, {"a": 1}, False),
    ("a missing value is one", {}, {"a": 1}, False),
    ("an empty value that the server left out is none", {}, {"a": {}, "b": [], "c": "", "d": False}, True),
    ("a list of another length is one", {"a": [1, 2]}, {"a": [1]}, False),
    ("defaults inside a list are none", {"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
    ("memory in other words is the same", {"memory": "1Gi"}, {"memory": "1024Mi"}, True),
    ("cpu in other words is the same", {"cpu": "1"}, {"cpu": "1000m"}, True),
    ("chips as a number and as text are the same", {"google.com/tpu": "4"}, {"google.com/tpu": 4}, True),
    ("more memory is a difference", {"memory": "2Gi"}, {"memory": "1Gi"}, False),
    ("another name is a difference", {"name": "a"}, {"name": "b"}, False),
]


@pytest.mark.parametrize(("sentence", "live", "wanted", "same"), COVERED, ids=[c[0] for c in COVERED])
def test_cover(sentence: str, live: dict[str, Any], wanted: dict[str, Any], same: bool) -> None:
    assert covers(live, wanted) is same


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})
