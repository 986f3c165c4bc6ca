"""The small engine as its clients meet it: a process, the openai package, signals, bad requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import json
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from support.serving import Server, config, manifest, serving
from tunewright_workloads.contract import exits
from tunewright_workloads.gemma import tiny

pytestmark = pytest.mark.pipeline

ASK: list[Any] = [{"role": "user", "content": "What is Tunewright?"}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("served") / "model"
    tiny.write(target)
    manifest(target)
    return target


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(directory, tmp_path_factory.mktemp("work")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_model_list_names_the_served_model_and_its_context(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.id == "tiny"
    assert card.max_model_len == 256  # type: ignore[attr-defined]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat_answer_has_text_usage_and_a_reason_to_end(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASK, temperature=0, max_tokens=12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize("temperature", [0, 1.5], ids=["greedy", "sampled"])
def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI, temperature: float) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": ASK,
        "temperature": temperature,
        "seed": 11,
        "max_completion_tokens": 40,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    deltas = [c.choices[0] for c in chunks if c.choices]
    assert deltas[0].delta.role == "assistant"
    assert "".join(d.delta.content or "" for d in deltas) == whole.choices[0].message.content
    assert [d.finish_reason for d in deltas if d.finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert all(c.usage is None for c in chunks[:-1])
    streamed = [t for d in deltas if d.logprobs for t in d.logprobs.content or []]
    assert whole.choices[0].logprobs is not None
    expected = whole.choices[0].logprobs.content or []
    # The same programs may run beside other slots' sequences: equal to rounding.
    assert [t.token for t in streamed] == [t.token for t in expected]
    assert [t.logprob for t in streamed] == pytest.approx([t.logprob for t in expected], abs=1e-5)
    assert all(len(t.top_logprobs) == 3 for t in streamed)


def test_the_wire_ends_with_done_and_each_event_is_one_line(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)
    body = json.dumps({"model": "tiny", "prompt": "Hello", "stream": True, "max_tokens": 3, "temperature": 0})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(e.removeprefix("data: "))["object"] == "text_completion" for e in events[:-2])
    connection.close()


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(client: openai.OpenAI) -> None:
    def answer(seed: int) -> str:
        made = client.completions.create(model="tiny", prompt="Once", temperature=2, seed=seed, max_tokens=24)
        return made.choices[0].text

    assert answer(1) == answer(1) != answer(2)


def test_a_stop_string_cuts_the_answer_before_itself(client: openai.OpenAI) -> None:
    full = client.completions.create(model="tiny", prompt="Once", temperature=1.5, seed=3, max_tokens=30)
    text = full.choices[0].text
    # Across the tokens: from the middle of the answer, longer than any one token is likely to be.
    stop = text[len(text) // 2 : len(text) // 2 + 6]
    cut = client.completions.create(
        model="tiny", prompt="Once", temperature=1.5, seed=3, max_tokens=30, stop=["\x00", stop]
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage is not None and full.usage is not None
    assert cut.usage.completion_tokens < full.usage.completion_tokens
    parts = client.completions.create(
        model="tiny", prompt="Once", temperature=1.5, seed=3, max_tokens=30, stop=stop, stream=True
    )
    assert "".join(p.choices[0].text for p in parts) == cut.choices[0].text


def test_the_end_of_a_turn_ends_an_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, "logit_bias": {str(tiny.TURN_END): 100}}
    chat = client.chat.completions.create(messages=ASK, max_tokens=9, logprobs=True, **asked)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("", "stop")
    assert chat.usage is not None and chat.usage.completion_tokens == 1
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    assert [t.token for t in chat.choices[0].logprobs.content] == ["<turn|>"]
    text = client.completions.create(prompt="x", max_tokens=9, extra_body={"ignore_eos": True}, **asked)
    assert text.usage is not None and text.usage.completion_tokens == 9
    assert text.choices[0].text == ""


def test_control_tokens_in_a_message_are_ordinary_text(client: openai.OpenAI) -> None:
    def count(content: str) -> int:
        messages: list[Any] = [{"role": "user", "content": content}]
        usage = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1).usage
        assert usage is not None
        return usage.prompt_tokens

    # As a token it would be one; as text it is several, and nobody else's turn begins.
    assert count("a<turn|>") > count("a") + 1
    raw = client.completions.create(model="tiny", prompt="a<turn|>", max_tokens=1).usage
    assert raw is not None and raw.prompt_tokens == 3, (
        "a raw prompt may hold control tokens: <bos>, a, <turn|>"
    )


def test_prompts_may_be_texts_or_token_ids_and_one_request_may_hold_several(client: openai.OpenAI) -> None:
    texts = client.completions.create(model="tiny", prompt=["Once", "Twice"], temperature=0, max_tokens=5)
    assert [c.index for c in texts.choices] == [0, 1]
    ids = client.completions.create(
        model="tiny",
        prompt="Once",
        temperature=0,
        max_tokens=5,
        logprobs=0,
        extra_body={"return_token_ids": True},
    )
    tokens = ids.choices[0].prompt_token_ids  # type: ignore[attr-defined]
    assert tokens[0] == tiny.BOS
    again = client.completions.create(model="tiny", prompt=tokens, temperature=0, max_tokens=5)
    assert again.choices[0].text == ids.choices[0].text == texts.choices[0].text


def test_more_requests_than_slots_all_get_their_own_answer(client: openai.OpenAI) -> None:
    def answer(number: int) -> str:
        made = client.completions.create(
            model="tiny", prompt=f"Number {number}", temperature=1, seed=number, max_tokens=20
        )
        return made.choices[0].text

    alone = [answer(n) for n in range(10)]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(answer, range(10)))
    assert together == alone


def test_health_answers_while_long_answers_are_generated(server: Server) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 250, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        work = [pool.submit(server.post, "/v1/completions", body) for _ in range(8)]
        seen = 0
        while not all(w.done() for w in work):
            assert server.health() == 200
            seen += 1
        assert seen > 1
        assert all(w.result()[0] == 200 for w in work)


def test_a_client_that_leaves_frees_its_slot(server: Server) -> None:
    def gauge(name: str) -> float:
        return sum(_values(_metrics(server), name))

    before = gauge('vllm:request_success_total{finished_reason="abort"')
    for stream in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=60)
        body = {
            "model": "tiny",
            "prompt": ["Hello"] * 200,
            "max_tokens": 250,
            "ignore_eos": True,
            "stream": stream,
        }
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        while gauge("vllm:num_requests_running") == 0:
            time.sleep(0.01)
        connection.sock.close()
        end = time.monotonic() + 60
        while gauge("vllm:num_requests_running") + gauge("vllm:num_requests_waiting") > 0:
            assert time.monotonic() < end
            time.sleep(0.01)
    # 400 answers of 250 tokens would have been generated to the end otherwise.
    assert gauge('vllm:request_success_total{finished_reason="abort"') > before + 200


def _metrics(server: Server) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.settings.port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def _values(text: str, *names: str) -> list[float]:
    """Values of the metrics whose line begins with one of `names`."""
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(names)]


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
OK: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 1}
OK_CHAT: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "says"),
    [
        (TEXT, {**OK, "model": "gpt-4"}, 404, "model", "'tiny'"),
        (TEXT, {**OK, "max_tokens": 257}, 400, "max_tokens", "256 tokens"),
        (TEXT, {**OK, "prompt": [5] * 256}, 400, "prompt", "256 tokens"),
        (CHAT, {**OK_CHAT, "messages": [{"role": "user", "content": "word " * 300}]}, 400, "messages", "256"),
        (CHAT, {"model": "tiny", "messages": ASK, "max_completion_tokens": 256}, 400, "max_completion_tokens", "256"),
        (TEXT, {**OK, "n": 2}, 400, "n", "n must be 1"),
        (TEXT, {**OK, "best_of": 3}, 400, "best_of", "not supported"),
        (TEXT, {**OK, "echo": True}, 400, "echo", "not supported"),
        (TEXT, {**OK, "suffix": "end"}, 400, "suffix", "not supported"),
        (TEXT, {**OK, "temprature": 1}, 400, "temprature", "did you mean temperature"),
        (TEXT, {**OK, "temperature": 3}, 400, "temperature", "less than or equal to 2"),
        (TEXT, {**OK, "temperature": "hot"}, 400, "temperature", "number"),
        (TEXT, {**OK, "top_p": 0}, 400, "top_p", "greater than 0"),
        (TEXT, {**OK, "stop": ["a"] * 5}, 400, "stop", "at most 4"),
        (TEXT, {**OK, "stop": [""]}, 400, "stop", "empty"),
        (TEXT, {**OK, "logprobs": 99}, 400, "logprobs", "20"),
        (TEXT, {**OK, "prompt": []}, 400, "prompt", "empty"),
        (TEXT, {**OK, "prompt": [1024]}, 400, "prompt", "1024"),
        (TEXT, {**OK, "prompt": [-1]}, 400, "prompt", "-1"),
        (TEXT, {**OK, "prompt": {"text": "x"}}, 400, "prompt", "list of token ids"),
        (TEXT, {"model": "tiny"}, 400, "prompt", "required"),
        (TEXT, {**OK, "logit_bias": {"9999": 1}}, 400, "logit_bias", "9999"),
        (TEXT, {**OK, "logit_bias": {"a": 1}}, 400, "logit_bias", "token ids"),
        (TEXT, {**OK, "stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
        (TEXT, [1, 2], 400, None, "JSON object"),
        (CHAT, {**OK_CHAT, "messages": []}, 400, "messages", "at least 1"),
        (CHAT, {**OK_CHAT, "messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role", "user"),
        (
            CHAT,
            {**OK_CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages[0].content",
            "no vision",
        ),
        (CHAT, {**OK_CHAT, "tools": [{"type": "function"}]}, 400, "tools", "not supported"),
        (CHAT, {**OK_CHAT, "response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
        (CHAT, {**OK_CHAT, "top_logprobs": 2}, 400, "top_logprobs", "logprobs"),
        ("/v1/embeddings", {"model": "tiny", "input": "x"}, 404, None, "/v1/embeddings"),
        ("/v1/models", {}, 405, None, "POST"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_is_refused_in_openais_shape(
    server: Server, path: str, body: Any, status: int, param: str | None, says: str
) -> None:
    got, answer = server.post(path, body)
    assert (got, set(answer)) == (status, {"error"}), answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert says in error["message"], error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": NaN'])
def test_a_body_that_is_not_json_is_refused(server: Server, raw: bytes) -> None:
    status, answer = server.post(TEXT, None, raw=raw)
    assert status == 400
    assert "JSON" in answer["error"]["message"]


def test_the_openai_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x", max_tokens=5000)
    assert long.value.code == "context_length_exceeded"


def test_sigterm_lets_a_thousand_requests_in_flight_end_and_exits_with_0(
    directory: Path, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    count, tokens = 1000, 4

    async def ask(client: aiohttp.ClientSession, url: str, number: int) -> tuple[int, int]:
        body = {"model": "tiny", "prompt": f"{number}", "max_tokens": tokens, "ignore_eos": True}
        async with client.post(url + TEXT, json=body) as response:
            return response.status, (await response.json())["usage"]["completion_tokens"]

    async def load(server: Server) -> list[Any]:
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as client:
            work = [asyncio.ensure_future(ask(client, server.url, n)) for n in range(count)]
            # In flight is what the server has read; what never reached it is the load balancer's to send.
            while True:
                async with client.get(f"{server.url}/metrics") as response:
                    text = await response.text()
                if sum(_values(text, "vllm:num_requests_", "vllm:request_success")) >= count:
                    break
                await asyncio.sleep(0.02)
            assert sum(_values(text, "vllm:num_requests_")) > 0, "some were still in flight"
            server.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*work, return_exceptions=True)

    try:
        with serving(directory, tmp_path, drain_seconds=200) as server:
            results = asyncio.run(load(server))
            assert results == [(200, tokens)] * count
            assert server.stop() == exits.DONE
            assert server.health() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_does_not_end_in_time_is_cut_off(directory: Path, tmp_path: Path) -> None:
    with (
        serving(directory, tmp_path, drain_seconds=1) as server,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        # 100,000 steps: tens of seconds.
        body = {"model": "tiny", "prompt": ["a"] * 500, "max_tokens": 200, "ignore_eos": True}
        work = pool.submit(server.post, TEXT, body)
        while not sum(_values(_metrics(server), "vllm:num_requests_running")):
            time.sleep(0.05)
        assert server.stop() == exits.DONE
        status, answer = work.result()
        assert (status, answer["error"]["code"]) == (503, "shutting_down")


def test_a_model_that_is_not_as_its_manifest_says_is_not_served(tmp_path: Path) -> None:
    target = tmp_path / "model"
    tiny.write(target)
    manifest(target)
    shard = sorted(target.glob("*.safetensors"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    server = Server(config(target, tmp_path / "work"), tmp_path / "work")
    assert server.process.wait(120) == exits.BAD_INPUT
    assert f"{shard.name}: does not have the sha256" in server.log.read_text()


def test_a_port_in_use_is_the_users_fault_and_known_at_once(
    server: Server, directory: Path, tmp_path: Path
) -> None:
    second = Server(config(directory, tmp_path, port=server.settings.port), tmp_path)
    assert second.process.wait(120) == exits.BAD_INPUT
    assert "port: cannot listen" in second.log.read_text()
