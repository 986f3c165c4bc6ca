"""The account of a job's runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.objects import Pod, at
from tunewright_operator.observe import ledger
from tunewright_operator.observe.ledger import Ledger

A, B, C = Pod.of("a", created=0), Pod.of("b", created=20), Pod.of("c", created=40)


def look(
    account: Ledger, pods: Sequence[Pod], minute: float, *, stopped: bool = False, hosts: int = 1
) -> Ledger:
    found = ledger.update(account, [p.slim for p in pods], {"train": hosts}, at(minute), stopped)
    return Ledger.load(found.dump())  # what is not written is not remembered


def bury(account: Ledger, pod: Pod, minute: float, *, stopped: bool = False) -> Ledger:
    """The pod was deleted; this is how it last looked."""
    found = ledger.update(
        account, [pod.slim], {}, at(minute), stopped, frozenset({pod.slim["metadata"]["uid"]})
    )
    return Ledger.load(found.dump())


def test_a_pod_without_a_node_costs_nothing_and_is_no_attempt() -> None:
    account = look(Ledger(), [A.unschedulable()], 30)
    assert (account.attempts, account.hours(at(60))) == (0, 0.0)


def test_a_running_slice_costs_its_chips_times_its_time() -> None:
    account = look(Ledger(), [A.running(0)], 1, hosts=2)
    assert account.hours(at(60)) == pytest.approx(8.0)
    assert account.seconds(at(60)) == 3600
    assert (account.attempts, account.chips) == (1, 8)


def test_a_failure_and_a_second_start_are_two_attempts() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = look(account, [A.failed(1, 0, 10)], 11)
    assert (account.attempts, account.failed("train")) == (1, 1)
    account = look(account, [A.failed(1, 0, 10), B.running(20)], 21)
    assert (account.attempts, account.failed("train"), account.interrupted) == (2, 1, 0)


def test_a_preemption_and_a_second_start_are_one_attempt_and_one_preemption() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = look(account, [A.failed(75, 0, 10)], 11)
    account = look(account, [A.failed(75, 0, 10), B.running(20)], 21)
    assert (account.attempts, account.failed("train"), account.interrupted) == (1, 0, 1)


def test_what_was_settled_survives_the_pods() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = look(account, [A.failed(1, 0, 30), B.running(40)], 41)
    account = look(account, [B.running(40)], 50)
    assert (account.attempts, account.failed("train")) == (2, 1)
    assert account.hours(at(70)) == pytest.approx(4 * 1.0)


def test_a_pod_that_vanishes_with_its_node_was_preempted() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = look(account, [], 15)
    assert (account.interrupted, account.failed("train")) == (1, 0)
    assert account.hours(at(600)) == pytest.approx(1.0)


def test_a_pod_that_we_end_ourselves_neither_failed_nor_was_preempted() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = look(account, [A.failed(75, 0, 10)], 11, stopped=True)
    account = look(account, [], 12, stopped=True)
    assert (account.interrupted, account.failed("train"), account.attempts) == (0, 0, 1)
    account = look(account, [B.running(20)], 21)
    assert account.attempts == 1


def test_a_pod_that_failed_and_was_deleted_between_two_looks_still_failed() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = bury(account, A.failed(1, 0, 10), 11)
    assert (account.failed("train"), account.interrupted, account.open) == (1, 0, ())


def test_a_run_that_was_settled_is_not_settled_again_by_whoever_still_remembers_its_pod() -> None:
    account = look(Ledger(), [A.running(0)], 1)
    account = bury(account, A.failed(1, 0, 10), 11)
    again = bury(account, A.failed(1, 0, 10), 12)
    assert again == account
    account = bury(again, B.failed(1, 20, 30), 31)
    assert (account.attempts, account.failed("train"), account.interrupted) == (2, 2, 0)
    assert look(account, [A.failed(1, 0, 10), C.running(40)], 41).failed("train") == 2


def test_runs_that_came_and_went_while_nobody_looked_are_counted_in_their_order() -> None:
    account = look(Ledger(), [A.failed(1, 0, 10), B.failed(75, 20, 30), C.running(40)], 41)
    assert (account.attempts, account.failed("train"), account.interrupted) == (2, 1, 1)


def test_a_second_look_at_the_same_pods_changes_nothing() -> None:
    pods = [A.failed(1, 0, 10), B.running(20)]
    account = look(Ledger(), pods, 21)
    assert look(account, pods, 45) == account


def test_of_a_slice_only_the_first_pod_is_a_run() -> None:
    pods = [A.running(0), Pod.of("a1", index=1).running(0), Pod.of("a2", index=2).running(0)]
    account = look(Ledger(), pods, 1, hosts=3)
    assert (account.attempts, account.chips) == (1, 12)


def test_a_slice_that_crashed_because_one_of_its_pods_was_taken_away_was_preempted() -> None:
    pods = [A.failed(1, 0, 10), Pod.of("a1", index=1).failed(75, 0, 10)]
    account = look(Ledger(), pods, 11, hosts=2)
    assert (account.failed("train"), account.interrupted) == (0, 1)


def test_failures_of_one_stage_are_not_those_of_another() -> None:
    merge = Pod.of("m", stage="merge").failed(1)
    account = look(Ledger(), [merge, A.succeeded()], 11)
    assert (account.failed("merge"), account.failed("train")) == (1, 0)


ENDS = {"fail": lambda p, s, e: p.failed(1, s, e), "preempt": lambda p, s, e: p.failed(75, s, e)}


@given(
    ends=st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=8),
    seen=st.lists(st.booleans(), min_size=8, max_size=8),
    kept=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_however_often_it_is_looked_at_the_sums_are_the_same(
    ends: list[str], seen: list[bool], kept: list[bool]
) -> None:
    account, pods = Ledger(), []
    for i, end in enumerate(ends):
        pod = Pod.of(f"p{i}", created=i * 20)
        if seen[i]:
            account = look(account, [*pods, pod.running(i * 20)], i * 20 + 1)
        pods.append(ENDS[end](pod, i * 20, i * 20 + 10))
        account = look(account, pods, i * 20 + 11)
        if not kept[i]:
            pods = []
    assert account.failed("train") == ends.count("fail")
    assert account.interrupted == ends.count("preempt")
    assert account.hours(at(9999)) == pytest.approx(len(ends) * 10 / 60 * 4, abs=1e-4)
    assert account.attempts == 1 + ends[:-1].count("fail")


def test_pods_that_started_in_the_same_second_are_told_apart_by_which_of_them_ended() -> None:
    same = [Pod.of("z", created=0).failed(1, 0, 1), Pod.of("a", created=0).running(0)]
    account = look(Ledger(), same, 2)
    assert (account.attempts, account.last) == (2, None)
