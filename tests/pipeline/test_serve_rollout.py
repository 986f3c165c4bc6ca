"""Rollouts of planned endpoints run as processes: wrong models never answer, and no request is lost.

With the small engine always; with the real vLLM by `make test-vllm` (a start of it is a CPU-minute).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource as limits
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support import merged, specs
from support.processes import Processes
from support.serving import ROOT, manifest
from tunewright_operator.api import ServeEndpoint
from tunewright_operator.observe.endpoint import REVISION
from tunewright_workloads.contract import exits
from tunewright_workloads.serve import probes
from tunewright_workloads.serve.verify import digest, read

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
IN_FLIGHT = 1000
PROMPT = [2, 301, 777, 450, 612, 333, 905, 588]
"""Words at random: no model is sure of what follows."""

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(1800)]


def _models(root: Path) -> None:
    base = merged.base(root / "base")
    for name, scale in (("right", 1.0), ("next", 0.5)):
        target = merged.merge(base, root / name, scale)
        manifest(target, probes.record(target))
    right, recorded = root / "right", read(root / "right").probes
    merged.without_tensor(right, root / "tensor-removed", recorded)
    merged.with_zeroed_layer(right, root / "layer-zeroed", recorded)
    merged.edit(base, root / "adapter-not-merged", lambda _, tensor: tensor, recorded)
    manifest(merged.merge(base, root / "alpha-doubled", scale=2), recorded)
    merged.with_other_tokenizer(right, root / "other-tokenizer", recorded)


class Answer(list[float]):
    """The log-probabilities of an answer's tokens, by which the models of this test are told apart."""

    def of(self, other: Answer) -> bool:
        """Whether the same model gave both."""
        return self == pytest.approx(other, abs=1e-3)


@dataclass
class Endpoint:
    """A planned endpoint and the models that it can be led to."""

    engine: str
    root: Path
    processes: Processes

    def lead(self, model: str) -> dict[str, Any]:
        changes = {
            "spec.model": {"uri": f"pvc://models/{model}"},
            "spec.accelerator": {"type": "cpu"},
            "spec.engine": {"name": self.engine, "maxModelLength": 256},
            "spec.rollout": {"strategy": "blueGreen"},
            "spec.drainSeconds": 120,
        }
        wanted: ServeEndpoint = specs.endpoint(changes)
        return self.processes.lead(wanted, digest(self.root / model))

    @property
    def service(self) -> str:
        return self.processes.services["support-bot"].url

    @property
    def selected(self) -> str:
        return self.processes.services["support-bot"].selector[REVISION]

    def ask(self) -> Answer:
        """The log-probabilities of a greedy answer through the Service, on a connection of its own."""
        address = self.service.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=120)
        try:
            asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 1}
            body = {"model": "support-bot", **asked}
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, text
            return Answer(json.loads(text)["choices"][0]["logprobs"]["token_logprobs"])
        finally:
            connection.close()

    @contextmanager
    def asking(self) -> Iterator[list[Answer]]:
        """Asks again and again while inside; what was answered. Raises what went wrong."""
        over, answers, lost = threading.Event(), list[Answer](), list[str]()

        def client() -> None:
            while not over.wait(0.2):
                try:
                    answers.append(self.ask())
                except Exception as problem:
                    lost.append(repr(problem))

        thread = threading.Thread(target=client, daemon=True)
        thread.start()
        try:
            yield answers
        finally:
            over.set()
            thread.join(180)
        assert lost == []


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("claims")
    (found / "models").mkdir()
    _models(found / "models")
    return found


@pytest.fixture(
    scope="module",
    params=[
        "jax",
        pytest.param(
            "vllm",
            marks=[
                pytest.mark.vllm,
                pytest.mark.skipif(
                    "TUNEWRIGHT_TEST_ALL" not in os.environ or not PYTHON.exists(),
                    reason="seven starts of vLLM, a CPU-minute each: `make test-vllm`",
                ),
            ],
        ),
    ],
)
def endpoint(
    request: pytest.FixtureRequest, claims: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    work = tmp_path_factory.mktemp("work")
    processes = Processes(work, claims, {"TUNEWRIGHT_VLLM_PYTHON": str(PYTHON)})
    made = Endpoint(request.param, claims / "models", processes)
    try:
        status = made.lead("right")
        assert status["phase"] == "Ready", status
        yield made
    finally:
        processes.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("tensor-removed", None),
        ("layer-zeroed", "prompt .*log-probabilit"),
        ("adapter-not-merged", "prompt .*log-probabilit"),
        ("alpha-doubled", "prompt .*log-probabilit"),
        ("other-tokenizer", "prompt .*its tokenizer makes other"),
    ],
)
def test_the_old_version_keeps_serving_when_the_new_one_is_wrong(
    endpoint: Endpoint, wrong: str, says: str | None
) -> None:
    before, answer = endpoint.selected, endpoint.ask()
    with endpoint.asking() as answers:
        status = endpoint.lead(wrong)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    available = next(c for c in status["conditions"] if c["type"] == "Available")
    assert (status["phase"], ready["status"], available["status"]) == ("Failed", "False", "True")
    if says is None:
        # The small engine reads every tensor that the model has, so that it does not even start. vLLM
        # starts, with chance memory in the tensor's place: its numbers are wrong, or are none.
        says = {"jax": "up_proj", "vllm": "prompt .*(log-probabilit|not JSON compliant)"}[endpoint.engine]
    assert re.search(says, ready["message"]), ready
    assert answers and all(a.of(answer) for a in [*answers, endpoint.ask()])
    assert endpoint.selected == before
    # Back again: nothing starts anew, and what was wrong is gone.
    status = endpoint.lead("right")
    assert status["phase"] == "Ready" and endpoint.selected == before
    assert [s.labels[REVISION] for s in endpoint.processes.servers()] == [before]


def test_a_thousand_requests_in_flight_during_a_rollout_are_all_answered(endpoint: Endpoint) -> None:
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    limits.setrlimit(limits.RLIMIT_NOFILE, (min(hard, 16384), hard))
    (old,) = endpoint.processes.servers()
    first, selected = endpoint.ask(), endpoint.selected
    results: list[tuple[int, int]] = []
    load = threading.Thread(target=lambda: results.extend(asyncio.run(_load(endpoint.service))), daemon=True)

    def flood() -> None:
        """The gate has passed, and the traffic has not moved."""
        before = _taken(old.port)
        load.start()
        _until(lambda: _taken(old.port) - before >= IN_FLIGHT, 120)

    endpoint.processes.before_move = flood
    try:
        with endpoint.asking() as answers:
            status = endpoint.lead("next")
            assert status["phase"] == "Ready", status
            assert endpoint.selected != selected and old.ending is not None
            assert load.is_alive(), "some requests were still in flight when the traffic had moved"
            new = endpoint.ask()
            assert not new.of(first), "the Service leads to the new version"
            _until(lambda: any(a.of(new) for a in answers), 300)
            load.join(300)
            old.ending.join(300)
        assert results == [(200, 16)] * IN_FLIGHT
        assert old.code == exits.DONE, old.log.read_text()[-2000:]
        assert all(a.of(first) or a.of(new) for a in answers), "each version answered as itself"
    finally:
        limits.setrlimit(limits.RLIMIT_NOFILE, (soft, hard))


async def _load(url: str) -> list[tuple[int, int]]:
    """Status and tokens of each of the requests, all sent at once."""
    connector, timeout = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:

        async def ask(number: int) -> tuple[int, int]:
            body = {"model": "support-bot", "prompt": f"{number}", "max_tokens": 16, "ignore_eos": True}
            async with client.post(f"{url}/v1/completions", json=body) as response:
                answer = await response.json()
                return response.status, answer.get("usage", {}).get("completion_tokens", 0)

        return await asyncio.gather(*(ask(number) for number in range(IN_FLIGHT)))


def _taken(port: int) -> float:
    """Requests that a server has or had."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    names = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:request_success_total")
    return sum(float(n.rpartition(" ")[2]) for n in lines if n.partition("{")[0].partition(" ")[0] in names)


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
