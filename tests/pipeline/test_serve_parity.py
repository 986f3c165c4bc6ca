"""The small engine generates what transformers generates, token by token, past the sliding window."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.reference import Reference
from support.serving import Server, manifest, serving
from tunewright_workloads.gemma import tiny

pytestmark = pytest.mark.pipeline

LENGTHS = (1, 2, 31, 32, 33, 90)
"""Prompt tokens: one alone, around the window of 32 and a bucket's edge, and far past both."""


@pytest.fixture(scope="module", params=["dense", "ple"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Server]:
    root = tmp_path_factory.mktemp(request.param)
    directory = root / "model"
    tiny.write(directory, variant=request.param, multimodal=request.param == "dense")
    manifest(directory)
    with serving(directory, root / "work") as server:
        yield directory, server


def test_greedy_tokens_and_logprobs_equal_those_of_transformers(served: tuple[Path, Server]) -> None:
    directory, server = served
    reference = Reference(directory)
    dice = random.Random(7)
    prompts = [[2, *(dice.randrange(300, 1024) for _ in range(n - 1))] for n in LENGTHS]
    status, body = server.post(
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": prompts,
            "temperature": 0,
            "max_tokens": 24,
            "ignore_eos": True,
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
        },
    )
    assert status == 200, body
    assert len({tuple(c["logprobs"]["tokens"]) for c in body["choices"]}) > 1
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        expected = reference.greedy(prompt, 24)
        tokens = [int(t.removeprefix("token_id:")) for t in choice["logprobs"]["tokens"]]
        assert tokens == expected.tokens, f"prompt of {len(prompt)}"
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.logprobs, abs=1e-3)
