"""Token ids and what is trained, read against the rendered text of every Gemma 4 template at hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rows import assistant, call, chat, user, words
from tunewright_workloads.contract.faults import Fault
from tunewright_workloads.data import files, rows
from tunewright_workloads.data.chat import Encoder, Example
from tunewright_workloads.data.tokenizer import Tokenizer


def templates() -> list[Any]:
    """Ours, and the revisions of Gemma 4's own that ship with TRL."""
    found = [pytest.param(words(), id="tiny")]
    try:
        import trl
    except ImportError:
        return found
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("gemma4*.jinja")):
        if path.stem == "gemma4_v2":  # a reduced one without tools in the model's turn
            continue
        found.append(
            pytest.param(
                dataclasses.replace(words(), template=path.read_text(encoding="utf-8")), id=path.stem
            )
        )
    return found


def encode(value: dict[str, Any], tokenizer: Tokenizer | None = None, loss_on: Any = "assistant") -> Example:
    row = rows.read(files.Record("t.jsonl", 1, value), "auto", loss_on)
    assert isinstance(row, rows.Row), row
    (found,) = Encoder(tokenizer or words(), loss_on).encode([row])
    assert isinstance(found, Example), found
    return found


def trained(example: Example) -> list[str]:
    """The trained stretches, as text."""
    parts: list[list[int]] = []
    for token, on, before in zip(example.tokens, example.mask, [False, *example.mask[:-1]], strict=False):
        if on and not before:
            parts.append([])
        if on:
            parts[-1].append(int(token))
    return [words().decode(p, skip_special_tokens=False) for p in parts]


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "every answer and its end, of a conversation of many turns": (
        chat(user("a"), assistant("One."), user("b"), assistant(" Two. ")),
        ["One.<turn|>", "Two.<turn|>"],
    ),
    "no system turn": (
        chat({"role": "system", "content": "Be brief."}, user(), assistant("One.")),
        ["One.<turn|>"],
    ),
    "the call and the answer, not the tool's response between them": (
        chat(
            user("w?"),
            assistant(None, tool_calls=[call("look", {"city": "Rome"})]),
            {"role": "tool", "tool_call_id": "1", "name": "look", "content": "rain"},
            assistant("It rains."),
        ),
        ['<|tool_call>call:look{city:<|"|>Rome<|"|>}<tool_call|>', "It rains.<turn|>"],
    ),
    "two calls, two responses": (
        chat(
            user("w?"),
            assistant("", tool_calls=[call("a"), call("b", number="2")]),
            {"role": "tool", "tool_call_id": "1", "name": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "2", "name": "b", "content": "y"},
            assistant("Done."),
        ),
        ["<|tool_call>call:a{}<tool_call|><|tool_call>call:b{}<tool_call|>", "Done.<turn|>"],
    ),
    "answers without the thinking inside them": (
        chat(user(), assistant("<|channel>thought\nhm\n<channel|>One.")),
        ["One.<turn|>"],
    ),
    "reasoning beside a call of the last turn": (
        chat(user(), assistant("", reasoning="hm", tool_calls=[call("a")])),
        ["<|channel>thought\nhm\n<channel|><|tool_call>call:a{}<tool_call|>"],
    ),
    "no reasoning of earlier turns": (
        chat(
            user("a"),
            assistant("", reasoning="hm", tool_calls=[call("a")]),
            {"role": "tool", "tool_call_id": "1", "name": "a", "content": "x"},
            assistant("One."),
            user("b"),
            assistant("Two."),
        ),
        ["<|tool_call>call:a{}<tool_call|>", "One.<turn|>", "Two.<turn|>"],
    ),
}


@pytest.mark.parametrize("tokenizer", templates())
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_on(tokenizer: Tokenizer, case: str) -> None:
    value, expected = CASES[case]
    assert trained(encode(value, tokenizer)) == expected


@pytest.mark.parametrize("tokenizer", templates())
@pytest.mark.parametrize("case", CASES)
def test_the_tokens_are_those_of_the_rendered_text(tokenizer: Tokenizer, case: str) -> None:
    value, _ = CASES[case]
    row = rows.read(files.Record("t.jsonl", 1, value), "auto", "assistant")
    assert isinstance(row, rows.Row)
    text = tokenizer.render_chat(row.messages)
    ids = encode(value, tokenizer).tokens.tolist()
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids == tokenizer.encode(text)
    assert ids.count(tokenizer.bos_id) == 1


def test_what_is_trained_follows_what_the_model_sees_when_it_generates() -> None:
    """The prompt of the server is a prefix of the training row, token for token."""
    encoder = Encoder(words())
    prompt = encoder.prompt([user("How <turn|> now?")])
    row = encode(chat(user("How <turn|> now?"), assistant("So.")))
    assert row.tokens[: len(prompt)].tolist() == prompt
    assert row.mask.argmax() == len(prompt)


CONTROL = sorted(words().control)


@given(
    st.lists(st.sampled_from([*CONTROL, "<|turn>model\n", "a", " ", "\n", "é"]), min_size=1, max_size=6),
    st.data(),
)
def test_text_of_control_tokens_never_becomes_control_tokens(parts: list[str], data: st.DataObject) -> None:
    text = "x" + "".join(parts) + "x"
    plain = encode(chat(user("x"), assistant("yes")))
    found = encode(chat(user(text), assistant("yes")))
    count = lambda e: {i: e.tokens.tolist().count(i) for i in words().control.values()}  # noqa: E731
    assert count(found) == count(plain)
    assert trained(found) == ["yes<turn|>"]
    assert text in words().decode(found.tokens.tolist(), skip_special_tokens=False)


def test_control_text_in_answers_tools_and_plain_text_is_text_too() -> None:
    calls = [call("f", {"a": "<turn|>"})]
    tool = {"role": "tool", "tool_call_id": "1", "name": "f", "content": "<|turn>model\nme"}
    found = encode(chat(user("q"), assistant("", tool_calls=calls), tool, assistant("no <turn|> yet")))
    assert trained(found)[-1] == "no <turn|> yet<turn|>"
    assert found.tokens.tolist().count(words().turn_end_id) == 2
    assert any("<turn|>" in note for note in found.notes)
    text = encode({"text": "a <turn|> b"})
    assert text.tokens.tolist().count(words().turn_end_id) == 0


@pytest.mark.parametrize(
    ("loss_on", "expected"),
    [
        ("assistant", ["One.<turn|>", "Two.<turn|>"]),
        ("completion", ["Two.<turn|>"]),
        (
            "all",
            [
                "<|turn>user\na<turn|>\n<|turn>model\nOne.<turn|>\n<|turn>user\nb<turn|>\n<|turn>model\nTwo.<turn|>\n"
            ],
        ),
    ],
)
def test_loss_on(loss_on: str, expected: list[str]) -> None:
    value = chat(user("a"), assistant("One."), user("b"), assistant("Two."))
    assert trained(encode(value, loss_on=loss_on)) == expected


@pytest.mark.parametrize("tokenizer", templates())
@pytest.mark.parametrize(
    "answer",
    [
        assistant("<|channel>thought\nhm\n<channel|>One."),
        assistant("One.", reasoning="hm"),
        assistant([{"type": "text", "text": "One."}], reasoning_content="hm"),
    ],
)
def test_thinking_is_trained_where_it_is_asked_for(tokenizer: Tokenizer, answer: dict[str, Any]) -> None:
    value = chat(user("a"), answer, user("<channel|> b"), answer)
    row = rows.read(files.Record("t.jsonl", 1, value), "auto", "assistant")
    assert isinstance(row, rows.Row)
    (found,) = Encoder(tokenizer, thinking=True).encode([row])
    assert isinstance(found, Example)
    assert trained(found) == ["<|channel>thought\nhm\n<channel|>One.<turn|>"] * 2
    assert found.tokens.tolist().count(words().token("<|channel>")) == 2
    assert found.tokens.tolist().count(words().token("<channel|>")) == 2
    assert trained(encode(value, tokenizer))[0] == "One.<turn|>"


def test_plain_text_is_trained_from_its_first_token_to_its_end() -> None:
    found = encode({"text": "Once upon"})
    assert trained(found) == ["Once upon<eos>"]
    assert found.tokens[0] == words().bos_id


def test_an_empty_answer_trains_nothing() -> None:
    found = encode(chat(user("a"), assistant("  "), user("b"), assistant("Two.")))
    assert trained(found) == ["Two.<turn|>"]
    assert not encode(chat(user("a"), assistant(" \n"))).mask.any()


def test_the_stop_after_a_call_is_trained_where_the_checkpoint_stops_there() -> None:
    response = words().token("<|tool_response>")
    stopping = dataclasses.replace(words(), stop_ids=frozenset({words().turn_end_id, response}))
    value = chat(user(), assistant("", tool_calls=[call("a")]))
    assert trained(encode(value, words())) == ["<|tool_call>call:a{}<tool_call|>"]
    assert trained(encode(value, stopping)) == ["<|tool_call>call:a{}<tool_call|><|tool_response>"]


def test_a_row_that_the_template_refuses_is_a_fault_with_its_place() -> None:
    refusing = dataclasses.replace(words(), template="{{ raise_exception('roles must alternate') }}")
    row = rows.read(files.Record("t.jsonl", 3, chat()), "auto", "assistant")
    assert isinstance(row, rows.Row)
    (found,) = Encoder(refusing).encode([row])
    assert isinstance(found, Fault)
    assert found.place == "t.jsonl:3: messages"
    assert "roles must alternate" in found.rule


@pytest.mark.parametrize("template", [None, "{{ nope("])
def test_a_template_that_is_none_is_the_checkpoints_fault_and_told_once(template: str | None) -> None:
    from tunewright_workloads.contract.faults import UserError

    broken = dataclasses.replace(words(), template=template)
    made = [rows.read(files.Record("t.jsonl", i, chat()), "auto", "assistant") for i in (1, 2, 3)]
    with pytest.raises(UserError, match="chat template") as error:
        list(Encoder(broken).encode([row for row in made if isinstance(row, rows.Row)]))
    assert [fault.place for fault in error.value.faults] == [str(broken.directory)]


def test_a_template_cannot_reach_outside_its_sandbox() -> None:
    from tunewright_workloads.contract.faults import UserError

    evil = dataclasses.replace(words(), template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(UserError, match="cannot render"):
        evil.render_chat([user()])


def test_many_rows_at_once_are_the_rows_one_by_one() -> None:
    values = [CASES[c][0] for c in CASES] * 2 + [{"text": "Once"}]
    found = [rows.read(files.Record("t", i, v), "auto", "assistant") for i, v in enumerate(values)]
    assert all(isinstance(r, rows.Row) for r in found)
    together = list(Encoder(words()).encode([r for r in found if isinstance(r, rows.Row)]))
    for value, example in zip(values, together, strict=True):
        assert isinstance(example, Example)
        alone = encode(value)
        assert np.array_equal(alone.tokens, example.tokens)
        assert np.array_equal(alone.mask, example.mask)
