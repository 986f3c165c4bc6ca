"""The HTTP side before, while and after an engine is there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from starlette.testclient import TestClient

from tunewright_workloads.gemma import tiny
from tunewright_workloads.serve.app import MAX_BODY, Engine, State, create
from tunewright_workloads.serve.sampling import Sampling
from tunewright_workloads.serve.scheduler import Scheduler
from tunewright_workloads.serve.text import Pieces

BODY = {"model": "m", "prompt": [400], "max_tokens": 3}


class Programs:
    """Always the same next token, until told to break."""

    slots = 1
    broken = False

    def prefill(self, slot: int, tokens: list[int]) -> None:
        pass

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if self.broken:
            raise MemoryError("no memory")
        logits = np.zeros((1, 1024), np.float32)
        logits[:, 500] = 9
        return logits


class Prompts:
    def text(self, prompt: str) -> list[int]:
        if prompt == "broken":
            raise ZeroDivisionError("a bug")
        return [400] * len(prompt)

    def chat(self, messages: object) -> list[int]:
        return [400]


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def state(programs: Programs) -> Iterator[State]:
    pieces = Pieces(tiny.ASSETS / "tokenizer.json")
    scheduler = Scheduler(programs, pieces)
    scheduler.start()
    made = State()
    made.engine = Engine(
        name="m", scheduler=scheduler, prompts=Prompts(), pieces=pieces, length=64, vocab=1024, dtype="float32",
        stop_tokens=frozenset({1}), turn_end=frozenset(), bos=2, defaults=Sampling(temperature=0.0),
    )  # fmt: skip
    yield made
    scheduler.stop()


def client(state: State) -> TestClient:
    return TestClient(create(state), raise_server_exceptions=False)


def test_nothing_is_served_before_the_model_is_ready() -> None:
    empty = client(State())
    for response in (empty.get("/health"), empty.get("/v1/models"), empty.post("/v1/completions", json=BODY)):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_loading"
    assert empty.get("/metrics").status_code == 200


def test_an_engine_that_broke_fails_its_requests_and_its_health(state: State, programs: Programs) -> None:
    http = client(state)
    assert http.get("/health").status_code == 200
    programs.broken = True
    failed = http.post("/v1/completions", json=BODY)
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "server_error"
    assert http.get("/health").status_code == 503
    assert http.get("/health").json()["error"]["code"] == "engine_dead"


def test_a_stream_that_breaks_says_so_before_it_ends(state: State, programs: Programs) -> None:
    programs.broken = True
    events = client(state).post("/v1/completions", json={**BODY, "stream": True}).text.split("\n\n")
    assert '"type": "server_error"' in events[0]
    assert events[1] == "data: [DONE]"


def test_a_bug_is_a_500_in_openais_shape_without_its_insides(state: State) -> None:
    response = client(state).post("/v1/completions", json={**BODY, "prompt": "broken"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "ZeroDivision" not in response.text


def test_a_body_without_end_is_refused(state: State) -> None:
    response = client(state).post("/v1/completions", content=b" " * (MAX_BODY + 1))
    assert response.status_code == 413
    assert "larger than" in response.json()["error"]["message"]


def test_metrics_have_vllms_names_and_count(state: State) -> None:
    http = client(state)
    assert http.post("/v1/completions", json=BODY).status_code == 200
    text = http.get("/metrics").text

    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)}.*? ([\d.]+)$", text, re.M)
        assert found, text
        return float(found[1])

    assert value('vllm:num_requests_running{model_name="m"}') == 0
    assert value('vllm:num_requests_waiting{model_name="m"}') == 0
    assert value('vllm:prompt_tokens_total{model_name="m"}') == 1
    assert value('vllm:generation_tokens_total{model_name="m"}') == 3
    assert value('vllm:request_success_total{finished_reason="length",model_name="m"}') == 1


def test_a_request_without_a_temperature_gets_the_checkpoints(state: State) -> None:
    # The default here is greedy: the one likely token, every time.
    answer = client(state).post("/v1/completions", json={**BODY, "return_token_ids": True}).json()
    assert answer["choices"][0]["token_ids"] == [500] * 3
