"""Text of tokens as they come: whole characters, no stop strings, the same as decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.data import tokenizer
from tunewright_workloads.gemma import tiny
from tunewright_workloads.serve.text import Decoder, Pieces, Stops

TINY = tiny.ASSETS
PIECES = Pieces(TINY / "tokenizer.json")
TOKENIZER = tokenizer.load(TINY)


def decoded(tokens: list[int]) -> list[str]:
    decoder = Decoder(PIECES)
    return [decoder.push(token) for token in tokens]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_parts_of_any_text_make_the_text_again(text: str) -> None:
    tokens = TOKENIZER.encode(text, control=False)
    assert "".join(decoded(tokens)) == TOKENIZER.decode(tokens, skip_special_tokens=False) == text


@given(st.lists(st.integers(0, PIECES.size - 1), max_size=60))
def test_no_sequence_of_tokens_breaks_the_decoder_or_takes_text_back(tokens: list[int]) -> None:
    parts = decoded(tokens)
    # The parts of a prefix are a prefix of the parts: nothing that was sent is ever changed.
    assert decoded(tokens[: len(tokens) // 2]) == parts[: len(tokens) // 2]
    "".join(parts).encode()


def test_a_character_of_four_bytes_appears_with_its_last_one() -> None:
    tokens = TOKENIZER.encode("🦜", control=False)
    assert len(tokens) == 4
    assert decoded(tokens) == ["", "", "", "🦜"]
    assert decoded(tokens[:3]) == ["", "", ""], "half a character is dropped"


def test_special_tokens_have_no_text_and_a_name_in_logprobs() -> None:
    end = TOKENIZER.token("<turn|>")
    assert decoded([end]) == [""]
    assert PIECES.bytes(end) == b"<turn|>"


def test_an_id_outside_the_vocabulary_has_no_bytes() -> None:
    assert PIECES.bytes(10**6) == b""


def test_a_decoder_that_is_not_gemmas_is_refused(tmp_path: object) -> None:
    import pathlib

    import tokenizers

    path = pathlib.Path(str(tmp_path)) / "tokenizer.json"
    other = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    other.decoder = tokenizers.decoders.ByteLevel()
    other.save(str(path))
    with pytest.raises(UserError, match="decoder other than Gemma's"):
        Pieces(path)


@pytest.mark.parametrize(
    ("stops", "parts", "shown", "met"),
    [
        (["END"], ["one ", "E", "N", "D", " two"], "one ", True),
        (["END"], ["one EN", "X two"], "one ENX two", False),
        (["END"], ["a EEND b"], "a E", True),
        (["aab"], ["aaab"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["x", "yx"], ["ay", "x"], "a", True),
        (["yx", "x"], ["ayx"], "a", True),
        (["END"], ["no", " stop", " EN"], "no stop EN", False),
        ([], ["a", "b"], "ab", False),
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", True),
    ],
)
def test_text_is_cut_before_the_first_stop_string(
    stops: list[str], parts: list[str], shown: str, met: bool
) -> None:
    found = Stops(stops)
    out, hit = "", False
    for part in parts:
        text, hit = found.push(part)
        out += text
        if hit:
            break
    assert (out if hit else out + found.flush(), hit) == (shown, met)


def cut(stops: list[str], text: str, at: list[int]) -> tuple[str, bool]:
    """What is shown of `text` that comes in parts divided at `at`, and whether it was stopped."""
    found, out = Stops(stops), ""
    for start, end in zip([0, *at], [*at, len(text)], strict=True):
        shown, met = found.push(text[start:end])
        out += shown
        if met:
            return out, True
    return out + found.flush(), False


TEXTS = st.text("ab", max_size=30)
WORDS = st.text("ab", min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=8)


@given(TEXTS, WORDS, CUTS)
def test_where_a_text_is_split_does_not_change_where_it_is_cut(text: str, stop: str, cuts: list[int]) -> None:
    at = sorted(c for c in cuts if c <= len(text))
    assert cut([stop], text, at) == (text.split(stop)[0], stop in text)


@given(TEXTS, st.lists(WORDS, min_size=2, max_size=4), CUTS)
def test_no_stop_string_is_ever_shown(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, met = cut(stops, text, sorted(c for c in cuts if c <= len(text)))
    assert text.startswith(shown)
    assert met == any(stop in text for stop in stops)
    assert not any(stop in shown for stop in stops)
    assert met or shown == text
