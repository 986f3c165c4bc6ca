from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tunewright_workloads.gemma import tiny

TOKENIZER = Tokenizer.from_file(str(tiny.ASSETS / "tokenizer.json"))
TEMPLATE = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    (tiny.ASSETS / "chat_template.jinja").read_text(encoding="utf-8")
)
SPECIAL = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|think|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|image>",
    "<|image|>",
    "<image|>",
    "<|audio>",
    "<|audio|>",
    "<audio|>",
    "<|video|>",
]


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    return TEMPLATE.render(messages=messages, bos_token="<bos>", **options)


def test_there_are_1024_tokens_and_a_byte_for_everything() -> None:
    assert TOKENIZER.get_vocab_size() == 1024
    vocabulary = TOKENIZER.get_vocab()
    assert all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    assert sorted(vocabulary.values()) == list(range(1024))


@pytest.mark.parametrize("text", SPECIAL)
def test_a_special_token_is_one_token(text: str) -> None:
    assert TOKENIZER.encode(f"a{text}b", add_special_tokens=False).tokens.count(text) == 1
    assert TOKENIZER.encode(text, add_special_tokens=False).tokens == [text]


def test_the_ids_that_the_configuration_names_are_the_tokenizers() -> None:
    ids = {tiny.PAD: "<pad>", tiny.EOS: "<eos>", tiny.BOS: "<bos>", tiny.TURN_END: "<turn|>"}
    ids |= {tiny.TOOL_RESPONSE: "<|tool_response>"}
    config = tiny.config("dense", True)
    ids |= {config["image_token_id"]: "<|image|>", config["boi_token_id"]: "<|image>"}
    ids |= {config["audio_token_id"]: "<|audio|>", config["eoa_token_index"]: "<audio|>"}
    ids |= {config["eoi_token_id"]: "<image|>", config["boa_token_id"]: "<|audio>"}
    ids |= {config["video_token_id"]: "<|video|>"}
    assert {number: TOKENIZER.id_to_token(number) for number in ids} == ids


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    encoded = TOKENIZER.encode(text, add_special_tokens=False)
    assert tiny.EOS not in encoded.ids and 3 not in encoded.ids  # <unk> is never needed
    # U+2581 stands for a space inside the tokenizer, as in Gemma's.
    assert TOKENIZER.decode(encoded.ids, skip_special_tokens=False) == text.replace("▁", " ")


def test_a_plain_prompt_gets_one_bos() -> None:
    assert TOKENIZER.encode("Hello").ids[0] == tiny.BOS
    assert TOKENIZER.encode("Hello").ids.count(tiny.BOS) == 1


USER, TOOL = {"role": "user", "content": " w? "}, {"role": "tool", "tool_call_id": "1", "content": "sunny"}
CALL = {
    "role": "assistant",
    "reasoning": "look it up",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "get", "arguments": {"city": "Bern", "n": 3}}}],
}
SHOWN = '<|tool_call>call:get{city:<|"|>Bern<|"|>,n:3}<tool_call|>'
ANSWERED = f'{SHOWN}<|tool_response>response:get{{value:<|"|>sunny<|"|>}}<tool_response|>'
THOUGHT = "<|channel>thought\nlook it up\n<channel|>"


@pytest.mark.parametrize(
    ("messages", "options", "text"),
    [
        ([USER], {}, "<|turn>user\nw?<turn|>\n"),
        ([USER], {"add_generation_prompt": True}, "<|turn>user\nw?<turn|>\n<|turn>model\n"),
        (
            [{"role": "system", "content": " S "}, USER],
            {},
            "<|turn>system\nS<turn|>\n<|turn>user\nw?<turn|>\n",
        ),
        (
            [{"role": "developer", "content": "S"}, USER],
            {"enable_thinking": True},
            "<|turn>system\n<|think|>\nS<turn|>\n<|turn>user\nw?<turn|>\n",
        ),
        ([USER, {"role": "system", "content": "S"}], {}, "<|turn>user\nw?<turn|>\n<|turn>system\nS<turn|>\n"),
        (
            [USER, {"role": "assistant", "content": "<|channel>thought\nhm<channel|> yes "}],
            {},
            "<|turn>user\nw?<turn|>\n<|turn>model\nyes<turn|>\n",
        ),
        (
            [USER, {"role": "assistant", "content": "a", "reasoning": "hm"}],
            {},
            "<|turn>user\nw?<turn|>\n<|turn>model\na<turn|>\n",
        ),
        ([USER, CALL], {"add_generation_prompt": True}, f"<|turn>user\nw?<turn|>\n<|turn>model\n{THOUGHT}{SHOWN}<|tool_response>"),
        ([USER, CALL, TOOL], {"add_generation_prompt": True}, f"<|turn>user\nw?<turn|>\n<|turn>model\n{THOUGHT}{ANSWERED}"),
        (
            [USER, CALL, TOOL, {"role": "assistant", "content": "Sunny."}, USER],
            {"add_generation_prompt": True},
            (f"<|turn>user\nw?<turn|>\n<|turn>model\n{ANSWERED}Sunny.<turn|>\n"
            "<|turn>user\nw?<turn|>\n<|turn>model\n"),
        ),
        (
            [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            {},
            "<|turn>user\nw?<turn|>\n<|turn>model\nab<turn|>\n",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}]}],
            {},
            "<|turn>user\na<|image|><turn|>\n",
        ),
        (
            [USER],
            {"tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"x": True}}}]},
            ('<|turn>system\n<|tool>declaration:f{description:<|"|>d<|"|>,parameters:{x:true}}<tool|><turn|>'
            "\n<|turn>user\nw?<turn|>\n"),
        ),
    ],
)  # fmt: skip
def test_the_template_renders_a_conversation(
    messages: list[dict[str, Any]], options: dict[str, Any], text: str
) -> None:
    assert render(messages, **options) == "<bos>" + text


def test_a_missing_content_is_not_the_word_none() -> None:
    assert "None" not in render([USER, {"role": "assistant", "content": None}])
