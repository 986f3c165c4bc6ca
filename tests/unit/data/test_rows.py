"""What a row may look like, and what is said of those that may not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rows import assistant, call, chat, user
from tunewright_workloads.contract.faults import Fault
from tunewright_workloads.data import files, rows


def read(value: dict[str, Any], wanted: Any = "auto", loss_on: str = "assistant") -> rows.Row | list[Fault]:
    return rows.read(files.Record("t.jsonl", 7, value), wanted, loss_on)


def good(value: dict[str, Any], **more: Any) -> rows.Row:
    row = read(value, **more)
    assert isinstance(row, rows.Row), row
    return row


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (chat(user("a"), assistant("b")), [user("a"), assistant("b")]),
        (
            {"prompt": "a", "completion": "b"},
            [user("a"), assistant("b")],
        ),
        (
            {"prompt": [user("a")], "completion": [assistant("b")]},
            [user("a"), assistant("b")],
        ),
        (
            chat(user([{"type": "text", "text": "a"}, "b"]), assistant()),
            [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), assistant()],
        ),
        (
            chat(user(), assistant(None, tool_calls=[call("f", '{"x": 1}')])),
            [user(), assistant("", tool_calls=[call("f", {"x": 1})])],
        ),
        (chat({**user("a"), "id": 4}, {**assistant("b"), "date": "x"}), [user("a"), assistant("b")]),
    ],
)
def test_formats_become_messages(value: dict[str, Any], messages: list[Any]) -> None:
    assert list(good(value).messages) == messages


def test_text_rows_stay_text() -> None:
    assert good({"text": "once"}).text == "once"


SHAREGPT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}


@pytest.mark.parametrize(
    ("value", "place", "says"),
    [
        (SHAREGPT, "(row)", "ShareGPT"),
        ({"messages": SHAREGPT["conversations"]}, "messages[0]", "rename from to role"),
        ({"instruction": "a", "output": "b"}, "(row)", "Alpaca"),
        ({"question": "a", "answer": "b"}, "(row)", "Rename question to prompt"),
        ({"prompt": "a", "response": "b"}, "(row)", "Rename prompt to prompt and response to completion"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "(row)", "preference"),
        ({"mesages": []}, "(row)", "Did you mean messages"),
        ({}, "(row)", "must have messages"),
        ({"messages": '[{"role": "user"}]'}, "messages", "JSON inside a string"),
        ({"messages": None}, "messages", "must be a list"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"messages": [[user(), assistant()]]}, "messages", "list of conversations"),
        ({"messages": ["hi"]}, "messages[0]", "must be an object"),
        (chat({"content": "a"}, assistant()), "messages[0].role", "is required"),
        (chat({"role": "human", "content": "a"}, assistant()), "messages[0].role", "Write user"),
        (chat(user(), {"role": "gpt", "content": "a"}), "messages[1].role", "Write assistant"),
        (chat(user(), {"role": "model", "content": "a"}), "messages[1].role", "Write assistant"),
        (chat(user(), {"role": "Assistant", "content": "a"}), "messages[1].role", "Write assistant"),
        (chat(user(), {"role": None, "content": "a"}), "messages[1].role", "got null"),
        (chat(user(None), assistant()), "messages[0].content", "word None"),
        (chat(user(), {"role": "assistant"}), "messages[1].content", "is required"),
        (chat(user(5), assistant()), "messages[0].content", "must be a string"),
        (chat(user({"a": 1}), assistant()), "messages[0].content", "must be a string"),
        (chat(user("\ud83d"), assistant()), "messages[0].content", "surrogate"),
        (chat(user("a\x00b"), assistant()), "messages[0].content", "NUL character at 2"),
        (
            chat(user([{"type": "image_url", "image_url": {"url": "x"}}]), assistant()),
            "messages[0].content[0]",
            "only text",
        ),
        (chat(user([{"text": "a"}]), assistant()), "messages[0].content[0]", "must be a part"),
        (chat(user([{"type": "text"}]), assistant()), "messages[0].content[0].text", "must not be null"),
        (chat(user([{"type": "blob"}]), assistant()), "messages[0].content[0].type", "must be text"),
        (chat(user()), "messages", "no assistant message"),
        (chat(user(), assistant(), user()), "messages[2]", "must be the assistant's, not the user's"),
        (chat(user(), {"role": "tool", "content": "x"}, assistant()), "messages[1]", "must follow"),
        (chat(user("a", tool_calls=[call()]), assistant()), "messages[0].tool_calls", "assistant"),
        (
            chat(user(), assistant(None, tool_calls=[{"name": "f"}])),
            "messages[1].tool_calls[0]",
            "must be {",
        ),
        (
            chat(user(), assistant(None, tool_calls=[call("f", "{x}")])),
            "messages[1].tool_calls[0].function.arguments",
            "is not JSON",
        ),
        (
            chat(user(), assistant(None, tool_calls=[call("f", "[1]")])),
            "messages[1].tool_calls[0].function.arguments",
            "must be an object",
        ),
        (chat(user(), assistant("a", weight=0)), "messages[1].weight", "not supported"),
        (chat(tools="no json"), "tools", "is not JSON"),
        (chat(tools=[{"name": "f"}]), "tools[0]", "must be {"),
        ({"prompt": "", "completion": "b"}, "prompt", "must not be empty"),
        ({"prompt": "a", "completion": None}, "completion", "must not be null"),
        ({"prompt": "<bos><|turn>user\na", "completion": "b"}, "prompt", "already rendered"),
        ({"text": "<|turn>user\na<turn|>"}, "text", "already rendered"),
        ({"text": "  "}, "text", "must not be empty"),
        ({"text": 4}, "text", "must be a string"),
    ],
)
def test_a_bad_row_is_named_with_field_and_way_out(value: dict[str, Any], place: str, says: str) -> None:
    found = read(value)
    assert isinstance(found, list)
    assert found[0].place == f"t.jsonl:7: {place}"
    assert says in str(found[0])


def test_all_faults_of_a_row_are_found_at_once() -> None:
    found = read(chat(user(None), {"role": "gpt", "content": "a"}, {"role": "user"}))
    assert isinstance(found, list)
    assert [f.place.split(": ")[1] for f in found] == [
        "messages[0].content",
        "messages[1].role",
        "messages[2].content",
    ]


def test_a_wanted_format_is_insisted_on() -> None:
    found = read({"text": "a"}, wanted="messages")
    assert isinstance(found, list)
    assert "dataset.format: auto takes it" in str(found[0])


def test_a_row_may_end_with_the_user_when_all_of_it_is_trained() -> None:
    assert good(chat(user(), assistant(), user()), loss_on="all")


def test_a_conversation_that_the_assistant_begins_is_taken_and_said() -> None:
    assert "starts with an assistant message" in good(chat(assistant(), user(), assistant())).notes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["messages", "role", "content", "type", "text", "tool_calls", "function", "name", "prompt",
                         "completion", "tools", "arguments", "from", "value"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["messages", "prompt", "completion", "text", "tools"]), JSON, max_size=4)
)
def test_whatever_json_a_row_holds_the_answer_is_a_row_or_faults_with_a_place(value: dict[str, Any]) -> None:
    found = read(value)
    if isinstance(found, list):
        assert found
        assert all(f.place.startswith("t.jsonl:7: ") and f.rule for f in found)
    else:
        assert found.text or found.messages
