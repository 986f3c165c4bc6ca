"""Whatever a client sends is a request or a refusal in OpenAI's shape, never an exception of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_workloads.serve.protocol import ApiError, ChatRequest, CompletionRequest, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields, "tempreature"})


def outcome(kind: Any, body: bytes) -> None:
    try:
        parse(kind, body)
    except ApiError as error:
        found = error.body()["error"]
        assert found["message"] and found["type"] == "invalid_request_error"
        json.dumps(found)


@given(
    st.sampled_from([CompletionRequest, ChatRequest]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
)
def test_any_json_in_any_field_is_read_or_refused(kind: Any, fields: dict[str, Any]) -> None:
    start: dict[str, Any] = {"model": "m", "prompt": "x"} if kind is CompletionRequest else {"model": "m"}
    outcome(kind, json.dumps({**start, **fields}).encode())


@given(st.sampled_from([CompletionRequest, ChatRequest]), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(kind: Any, body: bytes) -> None:
    outcome(kind, body)


@given(
    st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), JSON), max_size=3)
)
def test_any_messages_are_read_or_refused(messages: list[Any]) -> None:
    outcome(ChatRequest, json.dumps({"model": "m", "messages": messages}).encode())


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (ChatRequest, rb'{"model": "m", "messages": [{"role": "user", "content": "a\ud800"}]}', "messages[0].content"),
        (ChatRequest, b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "messages[0].content"),
        (CompletionRequest, rb'{"model": "m", "prompt": ["a", "\udc00"]}', "prompt[1]"),
        (CompletionRequest, rb'{"model": "m", "prompt": "a", "stop": "\ud800"}', "stop"),
        (CompletionRequest, rb'{"model": "m", "prompt": "a", "\ud800": 1}', "body"),
    ],
)  # fmt: skip
def test_half_a_character_is_refused_where_it_stands(kind: Any, body: bytes, param: str) -> None:
    with pytest.raises(ApiError, match="surrogate") as error:
        parse(kind, body)
    assert error.value.param == param


def test_a_whole_character_in_two_halves_is_text() -> None:
    assert parse(CompletionRequest, rb'{"model": "m", "prompt": "\ud83d\ude00"}').prompt == "\U0001f600"


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_an_assistant_may_say_nothing(role: str) -> None:
    body = {
        "model": "m",
        "messages": [{"role": role, "content": None}, {"role": "assistant", "content": None}],
    }
    with pytest.raises(ApiError, match=f"content is required of the role {role}") as error:
        parse(ChatRequest, json.dumps(body).encode())
    assert error.value.param == "messages[0]"


def test_every_fault_of_a_request_is_named_at_once() -> None:
    body = {"model": 3, "prompt": "x", "temperature": -1, "top_p": 2, "stop": 5, "nn": 1}
    with pytest.raises(ApiError) as error:
        parse(CompletionRequest, json.dumps(body).encode())
    for name in ("model:", "temperature:", "top_p:", "stop:", "nn: unknown parameter"):
        assert name in str(error.value)


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier", "prompt_cache_key"])
def test_parameters_that_change_no_answer_are_accepted(field: str) -> None:
    parse(CompletionRequest, json.dumps({"model": "m", "prompt": "x", field: "anything"}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 1), ("echo", False), ("best_of", 1), ("suffix", None), ("stop", None), ("logit_bias", {})],
)
def test_a_parameter_that_asks_for_nothing_is_accepted(field: str, value: Any) -> None:
    parse(CompletionRequest, json.dumps({"model": "m", "prompt": "x", field: value}).encode())


def test_a_boolean_is_no_number() -> None:
    for field in ("temperature", "max_tokens", "seed"):
        with pytest.raises(ApiError, match=field):
            parse(CompletionRequest, json.dumps({"model": "m", "prompt": "x", field: True}).encode())
