"""An endpoint on a real node changes its model: no request is lost, and a wrong model never answers."""

from __future__ import annotations

import pytest
from tests.cluster.api import condition
from tests.e2e.rolling import REQUESTS, WRONG, Rolled

pytestmark = pytest.mark.timeout(3600)

SAYS = {"other-tokenizer": "its tokenizer makes other"}


def test_no_request_is_lost_while_models_change(rolled: Rolled) -> None:
    assert rolled.clients.lost == []
    assert rolled.clients.answers.total() >= REQUESTS


def test_the_traffic_moves_to_the_right_model_and_stays_there(rolled: Rolled) -> None:
    assert rolled.second != rolled.first
    assert condition({"status": rolled.healed}, "Ready")


def test_nothing_but_the_right_answer_was_ever_given(rolled: Rolled) -> None:
    assert set(rolled.clients.answers) == {rolled.right}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_refused_by_name_of_prompt_and_difference(rolled: Rolled, name: str) -> None:
    seen = rolled.refused[name]
    assert seen.status["phase"] == "Failed"
    stalled = condition({"status": seen.status}, "Stalled")
    assert stalled is not None
    assert stalled["reason"] == "GateFailed"
    assert "prompt 1 (" in stalled["message"]
    assert SAYS.get(name, "log-probabilit") in stalled["message"]


@pytest.mark.parametrize("name", WRONG)
def test_the_old_version_goes_on_serving_while_a_wrong_one_is_refused(rolled: Rolled, name: str) -> None:
    seen = rolled.refused[name]
    assert seen.during == seen.before
    assert seen.answer == rolled.right
    assert condition({"status": seen.status}, "Available")
