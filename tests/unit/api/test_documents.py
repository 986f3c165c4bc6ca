"""YAML is read as kubectl reads it; what it would change silently is a fault with line and column."""

from __future__ import annotations

import pytest

from tunewright_operator.api import documents
from tunewright_workloads.contract.faults import UserError

BROKEN = [
    ("an unclosed list", "a: [1, 2\nb: 3\n", "f.yaml:2:2", "is not YAML"),
    ("a tab for indentation", "a:\n\tb: 1\n", "f.yaml:2:1", "is not YAML"),
    ("a colon in plain text", "a: b: c\n", "f.yaml:1:5", "mapping values are not allowed here"),
    ("an unclosed quote", 'a: "b\n', "f.yaml:2:1", "is not YAML"),
    ("an anchor that nobody set", "a: *b\n", "f.yaml:1:4", "undefined alias"),
    ("a list item among keys", "a: 1\n- b\n", "f.yaml:2:1", "is not YAML"),
    ("a brace too many", "a: {b: 1}}\n", "f.yaml:1:10", "is not YAML"),
    ("a key twice", "a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "the key a stands twice"),
    ("a key twice in a nested mapping", "a:\n  b: 1\n  b: 2\n", "f.yaml:3:3", "the key b stands twice"),
    ("a key twice in braces", "a: {b: 1, b: 2}\n", "f.yaml:1:11", "the key b stands twice"),
    ("a number in base eight", "a: 010\n", "f.yaml:1:4", "a number must not begin with 0"),
    ("a negative number in base eight", "a: -010\n", "f.yaml:1:4", "a number must not begin with 0"),
    ("a key that is a truth value", "on: 1\n", "f.yaml:1:1", "a key must be text"),
    ("a key of one letter that is a truth value", "n: 1\n", "f.yaml:1:1", "a key must be text"),
    ("a key that is a number", "1: a\n", "f.yaml:1:1", "a key must be text"),
    ("a key that is nothing", "~: a\n", "f.yaml:1:1", "a key must be text"),
    ("a key that is a list", "? [a, b]\n: 1\n", "f.yaml:1:3", "a key must be text"),
    ("a tag of Python", "a: !!python/object/apply:os.system [ls]\n", "f.yaml:1:4", "tags are not allowed"),
    ("a tag of one's own", "a: !secret b\n", "f.yaml:1:4", "tags are not allowed"),
    ("an anchor that holds itself", "a: &x [1, *x]\n", "f.yaml:1:4", "an anchor must not hold itself"),
    ("a control character", "a: \x01\n", "f.yaml", "is not text in UTF-8"),
    ("a merge of what is no mapping", "a:\n  <<: 1\n", "f.yaml:2:7", "is not YAML"),
    ("a hundred and one levels", "[" * 120 + "]" * 120, "f.yaml:1:102", "is nested too deeply"),
    ("five thousand levels", "[" * 5000, "f.yaml", "cannot be read"),
    ("a number of five thousand digits", "a: " + "9" * 5000, "f.yaml", "cannot be read"),
    ("a second document that is broken", "a: 1\n---\nb: [\n", "f.yaml:4:1", "is not YAML"),
    ("more than a resource may hold", "a: " + "x" * 1_100_000, "f.yaml", "is too large"),
    (
        "a billion laughs",
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{n}: &{n} [{', '.join(['*' + p] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "f.yaml",
        "expands to more than",
    ),
]


@pytest.mark.parametrize(
    ("text", "place", "message"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_a_broken_text_is_refused_with_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        documents.read(text, "f.yaml")
    fault = caught.value.faults[0]
    assert fault.place == place, caught.value.text()
    assert message in str(fault)


def test_all_faults_of_a_text_are_shown_at_once() -> None:
    with pytest.raises(UserError) as caught:
        documents.read("a: 010\non: 1\na: 2\n---\nb: 1\nb: 2\n", "f.yaml")
    assert [f.place for f in caught.value.faults] == ["f.yaml:1:4", "f.yaml:2:1", "f.yaml:3:1", "f.yaml:6:1"]


AS_KUBECTL = [
    # Seen with kubectl 1.36: `kubectl create --dry-run=client -o json`.
    ("y", True),
    ("off", False),
    ("No", False),
    ("1:30", "1:30"),
    ("2026-12-01", "2026-12-01"),
    ("1e-4", 1e-4),
    ("1e3", 1000.0),
    ("0o10", 8),
    ("1_000", 1000),
    (".5", 0.5),
    ("1.", 1.0),
    ("0x1F", 31),
    ("0b11", 3),
    ("~", None),
    ("5.0e-3", 0.005),
    ("12h", "12h"),
    ("2x2x1", "2x2x1"),
    ("'no'", "no"),
    ("=", "="),
]


@pytest.mark.parametrize(("text", "value"), AS_KUBECTL)
def test_a_plain_value_is_what_kubectl_takes_it_for(text: str, value: object) -> None:
    (document,) = documents.read(f"a: {text}\n", "f.yaml")
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


def test_anchors_and_merge_keys_are_fine() -> None:
    (document,) = documents.read("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\ne: *x\n", "f.yaml")
    assert document.data == {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 2}}


def test_empty_documents_are_left_out() -> None:
    assert [d.data for d in documents.read("---\n# nothing\n---\na: 1\n---\n...\n", "f.yaml")] == [{"a": 1}]


def test_json_with_tabs_is_read_as_kubectl_reads_it() -> None:
    (document,) = documents.read('{\n\t"a": [1,\n\t2]\n}\n', "f.json")
    assert document.data == {"a": [1, 2]}


def test_what_stood_at_a_place_can_be_asked_for() -> None:
    (document,) = documents.read("a:\n  b: [x, no, 'no']\n", "f.yaml")
    assert document.text_at(("a", "b", 1)) == "no"
    assert document.text_at(("a", "b", 2)) is None  # quoted: nothing to explain
    assert document.text_at(("a", "c")) is None
    assert document.text_at(("a", "b", 7)) is None
