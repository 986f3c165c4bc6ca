from __future__ import annotations

import pytest

from tunewright_workloads.compare import paper
from tunewright_workloads.compare.money import Offer, break_even

CLAIMS = {claim.what: claim for claim in paper.claims()}


@pytest.mark.parametrize("what", [c.what for c in paper.claims() if not c.what.startswith("$/1M")])
def test_the_paper_figure_follows_from_its_inputs_to_the_printed_digit(what):
    assert CLAIMS[what].derived == CLAIMS[what].printed


def test_the_price_of_a_million_tokens_does_not_follow_from_the_printed_rates():
    # 56.11 / (763 x 3.34 x 3600) = 6.116 and 119.23 / (486 x 5.39 x 3600) = 12.643.
    assert CLAIMS["$/1M tokens, TPU"].derived == "6.12"
    assert CLAIMS["$/1M tokens, GPU"].derived == "12.64"
    assert not CLAIMS["$/1M tokens, TPU"].holds


def test_the_floor_of_a_16k_prompt_is_told_for_both_sides():
    floor = next(line for line in paper.remarks() if "16,384" in line)
    assert "137 ms" in floor and "509 ms" in floor


def test_an_offer_that_is_cheaper_in_both_is_never_overtaken():
    assert break_even(Offer("a", 10, 1, 1), Offer("b", 20, 2, 1)) is None


def test_the_dearer_to_train_wins_after_the_break_even():
    a, b = Offer("a", 100, 1, 1), Offer("b", 20, 5, 1)
    hours = break_even(a, b)
    assert hours == pytest.approx(20)
    assert a.total(hours) == pytest.approx(b.total(hours))
