"""Names of children: valid everywhere Kubernetes puts them, and never shared by two resources."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_operator.plan import names

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

resource_names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?", fullmatch=True)
dotted_names = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True)
suffixes = st.sampled_from(["train", "merge", "evaluate", "serve-0123456789", "progress", ""])


@given(dotted_names, suffixes, st.sampled_from([names.JOBSET_LIMIT, names.LIMIT, 63]))
def test_every_name_is_a_dns_label_within_its_limit(name, suffix, limit):
    made = names.child(name, suffix, limit)
    assert DNS_LABEL.fullmatch(made)
    assert len(made) <= limit


@given(resource_names, resource_names, suffixes)
def test_two_resources_never_share_a_child(one, other, suffix):
    if one != other:
        assert names.child(one, suffix) != names.child(other, suffix)


def test_a_name_that_fits_stays_readable():
    assert names.child("support-bot", "train") == "support-bot-train"


@pytest.mark.parametrize(
    ("name", "begins", "why"),
    [
        ("a" * 60, "aaaaaaaa", "too long"),
        ("a.b", "a-b-", "dots are not allowed in a Service's name"),
        ("1st", "t-1st-", "a Service's name begins with a letter"),
    ],
)
def test_a_name_that_does_not_fit_is_hashed(name, begins, why):
    made = names.child(name, "train")
    assert made.startswith(begins), why
    assert re.search(r"-[0-9a-f]{8}-train$", made)


def test_names_that_are_cut_at_the_same_place_differ():
    one, other = "x" * 60 + "a", "x" * 60 + "b"
    assert names.child(one, "train") != names.child(other, "train")


@given(dotted_names)
def test_label_values_are_valid(name):
    value = names.label(name)
    assert LABEL_VALUE.fullmatch(value)
    assert len(value) <= 63
