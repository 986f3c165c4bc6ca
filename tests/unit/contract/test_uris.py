from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import UserError


@pytest.mark.parametrize(
    ("text", "scheme", "root", "path"),
    [
        ("gs://acme/sft/train.jsonl", "gs", "acme", "sft/train.jsonl"),
        ("gs://acme", "gs", "acme", ""),
        ("hf://google/gemma-4-31B-it", "hf", "google/gemma-4-31B-it", ""),
        ("hf://google/gemma-4-31B-it/config.json", "hf", "google/gemma-4-31B-it", "config.json"),
        ("pvc://claim/a/b", "pvc", "claim", "a/b"),
        ("file:///data/x y.jsonl", "file", "", "/data/x y.jsonl"),
        ("file:///data/dir/", "file", "", "/data/dir"),
        ("sample://faq", "sample", "", "faq"),
    ],
)
def test_a_good_uri_is_taken_apart_and_written_back(text, scheme, root, path):
    uri = uris.parse(text)
    assert (uri.scheme, uri.root, uri.path) == (scheme, root, path)
    assert uris.parse(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a URI"),
        ("/data/train.jsonl", "file:///data/train.jsonl"),
        ("train.jsonl", "For a local path"),
        ("s3://bucket/x", "only gs://"),
        ("gcs://bucket/x", "Did you mean gs://?"),
        ("gs:///x", "bucket name"),
        ("gs://UPPER/x", "bucket name"),
        ("hf://gemma", "org/name"),
        ("pvc://claim", "path below the claim"),
        ("file://data/x", "absolute path"),
        ("file:///", "absolute path"),
        ("gs://acme/../secret", "'..' segments"),
        ("file:///a/./b", "'..' segments"),
        ("gs://acme/a\nb", "control characters"),
    ],
)
def test_a_bad_uri_is_refused_with_its_rule(text, says):
    with pytest.raises(UserError) as caught:
        uris.parse(text, "spec.output.uri")
    assert caught.value.text().startswith("spec.output.uri: ")
    assert says in caught.value.text()


@pytest.mark.parametrize("text", ["hf://google/gemma", "sample://faq", "gs://acme", "pvc://claim"])
def test_what_cannot_be_written_to_is_refused_as_output(text):
    with pytest.raises(UserError):
        uris.parse(text, writable=True)


@given(st.text())
def test_any_text_is_a_uri_or_a_user_error(text):
    try:
        uri = uris.parse(text)
    except UserError:
        return
    assert uris.parse(str(uri)) == uri


@pytest.mark.parametrize(
    "text", ["gs://acme/x", "pvc://c/x", "file:///x", "hf://a/b", "sample://faq", "hf://a/b/c"]
)
def test_the_schema_pattern_accepts_what_the_parser_accepts(text):
    assert re.match(uris.READ_PATTERN, text)


def test_a_child_lies_below():
    assert str(uris.parse("gs://acme/out").child("checkpoints", "10")) == "gs://acme/out/checkpoints/10"
    assert str(uris.parse("file:///out").child("merged")) == "file:///out/merged"


def test_an_argument_without_a_scheme_is_a_path_of_this_machine(tmp_path, monkeypatch):
    folder = tmp_path / "ü b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "loop").symlink_to("loop")
    for text, path in {"x": folder / "x", "../y.jsonl": tmp_path / "y.jsonl", ".": folder}.items():
        assert uris.parse(uris.local(text)).path == str(path)
    assert uris.local("gs://acme/x") == "gs://acme/x"
    assert uris.local("") == ""
    uris.local("../loop")
