"""The work queue, with a clock that is turned by hand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_operator.reconcile.queue import Queue


class Hand:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 20))


def test_a_key_that_is_added_ten_times_is_worked_on_once() -> None:
    async def main() -> None:
        queue: Queue[str] = Queue(Hand())
        for _ in range(10):
            queue.add("a")
        assert await queue.get() == "a"
        assert len(queue) == 0

    run(main)


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_once_and_only_afterwards() -> None:
    async def main() -> None:
        queue: Queue[str] = Queue(Hand())
        queue.add("a")
        await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert len(queue) == 1
        assert await queue.get() == "a"
        queue.done("a")
        assert len(queue) == 0

    run(main)


def test_of_two_delayed_wishes_the_earlier_counts_and_the_later_is_dropped() -> None:
    async def main() -> None:
        clock = Hand()
        queue: Queue[str] = Queue(clock)
        queue.later("a", 60)
        queue.later("a", 10)
        queue.later("a", 30)
        clock.seconds = 9.9
        queue.tick()
        assert len(queue) == 0
        clock.seconds = 10
        queue.tick()
        assert await queue.get() == "a"
        queue.done("a")
        clock.seconds = 100
        queue.tick()
        assert len(queue) == 0

    run(main)


def test_work_that_comes_at_once_fulfils_a_delayed_wish() -> None:
    async def main() -> None:
        clock = Hand()
        queue: Queue[str] = Queue(clock)
        queue.later("a", 10)
        queue.add("a")
        await queue.get()
        queue.done("a")
        clock.seconds = 20
        queue.tick()
        assert len(queue) == 0

    run(main)


def test_the_delay_after_failures_doubles_up_to_its_cap_and_starts_anew_after_a_success() -> None:
    async def main() -> None:
        queue: Queue[str] = Queue(Hand(), base=1, cap=10, jitter=lambda: 1.0)
        delays = [queue.fail("a") for _ in range(6)]
        assert delays == [1, 2, 4, 8, 10, 10]
        queue.forget("a")
        assert queue.fail("a") == 1

    run(main)


@given(st.integers(0, 200), st.floats(0, 0.999))
def test_a_jittered_delay_stays_between_half_and_all_of_its_interval(failures: int, factor: float) -> None:
    async def main() -> None:
        queue: Queue[str] = Queue(Hand(), base=0.5, cap=300, jitter=lambda: factor)
        queue._failures["a"] = failures
        limit = min(300, 0.5 * 2.0 ** min(failures, 32))
        assert limit / 2 <= queue.fail("a") <= limit

    run(main)


def test_a_dropped_key_does_not_come_back_by_itself() -> None:
    async def main() -> None:
        clock = Hand()
        queue: Queue[str] = Queue(clock)
        queue.fail("a")
        queue.drop("a")
        clock.seconds = 1e6
        queue.tick()
        assert len(queue) == 0

    run(main)


def test_a_worker_that_waits_wakes_up_when_a_delay_is_over() -> None:
    async def main() -> None:
        queue: Queue[str] = Queue()
        queue.later("a", 0.05)
        assert await queue.get() == "a"

    run(main)


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_no_key_is_ever_worked_on_twice_at_a_time_and_none_is_lost(workers: int) -> None:
    async def main() -> None:
        queue: Queue[int] = Queue()
        active: set[int] = set()
        seen: dict[int, int] = {}
        wanted: dict[int, int] = {}

        async def work() -> None:
            while True:
                key = await queue.get()
                assert key not in active
                active.add(key)
                version = wanted[key]
                await asyncio.sleep(0)
                seen[key] = version
                await asyncio.sleep(0)
                active.discard(key)
                queue.done(key)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        for version in range(20):
            for key in range(30):
                wanted[key] = version
                queue.add(key)
            await asyncio.sleep(0)
        while len(queue) or queue.working:
            await asyncio.sleep(0.001)
        for task in tasks:
            assert not task.done() or task.exception() is None
            task.cancel()
        assert seen == wanted

    run(main)
