"""The next token: greedy, by temperature, within the nucleus, by seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tunewright_workloads.serve.sampling import Sampler, Sampling, log_softmax

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def drawn(count: int = 4000, **asked: object) -> Counter[int]:
    sampler = Sampler(Sampling(seed=5, **asked))  # type: ignore[arg-type]
    return Counter(sampler.choose(LOGITS).token for _ in range(count))


def test_temperature_0_takes_the_best_token_whatever_the_seed() -> None:
    assert {Sampler(Sampling(temperature=0, seed=s)).choose(LOGITS).token for s in range(20)} == {0}


def test_tokens_come_as_often_as_they_are_likely() -> None:
    counts = drawn()
    for token, probability in enumerate((0.5, 0.25, 0.15, 0.1)):
        # Five standard deviations of the binomial.
        assert abs(counts[token] / 4000 - probability) < 5 * (probability * (1 - probability) / 4000) ** 0.5


def test_a_low_temperature_sharpens() -> None:
    assert drawn(temperature=0.5)[0] / 4000 == pytest.approx(0.25 / (0.25 + 0.0625 + 0.0225 + 0.01), abs=0.04)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.8}, {0, 1, 2}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"logit_bias": {0: -100.0}}, {1, 2, 3}),
        ({"logit_bias": {3: 100.0}}, {3}),
    ],
)
def test_only_the_tokens_that_were_asked_for_are_drawn(asked: dict[str, object], kept: set[int]) -> None:
    assert set(drawn(**asked)) == kept


def test_the_same_seed_draws_the_same_tokens() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.choose(LOGITS).token for _ in range(30)]

    assert draw(1) == draw(1) != draw(2)


def test_penalties_count_what_was_generated() -> None:
    sampler = Sampler(Sampling(temperature=0, frequency_penalty=0.3))
    # log(0.5/0.25) = 0.69: the second token wins once the first was taken three times.
    assert [sampler.choose(LOGITS).token for _ in range(4)] == [0, 0, 0, 1]
    sampler = Sampler(Sampling(temperature=0, presence_penalty=2))
    assert [sampler.choose(LOGITS).token for _ in range(4)] == [0, 1, 2, 3]


def test_the_end_cannot_come_before_the_least_number_of_tokens() -> None:
    sampler = Sampler(Sampling(temperature=0, min_tokens=2), frozenset({0}))
    assert [sampler.choose(LOGITS).token for _ in range(3)] == [1, 1, 0]


def test_logprobs_are_the_models_own_before_any_parameter() -> None:
    sampled = Sampler(Sampling(temperature=0, logit_bias={3: 100.0})).choose(LOGITS, top=2)
    assert sampled.token == 3
    assert sampled.logprob == pytest.approx(np.log(0.1), abs=1e-6)
    assert [t for t, _ in sampled.top] == [0, 1]
    assert [p for _, p in sampled.top] == pytest.approx(np.log([0.5, 0.25]), abs=1e-6)


def test_huge_logits_overflow_nothing() -> None:
    logits = np.array([3e38, -3e38, 0], np.float32)
    assert log_softmax(logits)[0] == 0
    assert Sampler(Sampling(seed=1)).choose(logits, top=3).token == 0
