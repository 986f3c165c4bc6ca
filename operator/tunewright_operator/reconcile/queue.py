"""The work queue: a key is worked on by one worker at a time, and waits at most once.

Ten events of one job while it waits are one reconciliation; an event that comes while it is worked
on is one more afterwards. This is the queue of Kubernetes' own controllers, for asyncio.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tunewright_operator.reconcile.clock import Clock, SystemClock

K = TypeVar("K", bound=Hashable)


class Queue(Generic[K]):
    """Keys that want work.

    base, cap:  seconds of the first and of the longest delay after a failure; each failure of a
                key doubles its delay.
    jitter:     returns a factor in [0, 1): delays are drawn from the upper half of the interval,
                so that a thousand keys that failed together do not come back together.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        base: float = 0.5,
        cap: float = 300.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.clock = clock or SystemClock()
        self.base, self.cap, self.jitter = base, cap, jitter
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._dirty: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Keys that wait for a worker now (delayed ones are not counted)."""
        return len(self._ready)

    @property
    def working(self) -> int:
        return len(self._working)

    def add(self, key: K) -> None:
        """The key wants work now. A delayed wish of it is fulfilled by this, too."""
        self._due.pop(key, None)
        if key in self._waiting:
            return
        if key in self._working:
            self._dirty.add(key)
            return
        self._waiting.add(key)
        self._ready.append(key)
        self._wake.set()

    def later(self, key: K, seconds: float) -> None:
        """The key wants work in so many seconds; of several wishes the earliest counts."""
        due = self.clock.monotonic() + max(0.0, seconds)
        if key in self._waiting or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        self._arm()

    def fail(self, key: K) -> float:
        """The key's work failed: it comes again after a growing, jittered delay, which is returned."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        limit = min(self.cap, self.base * 2.0 ** min(count, 32))
        delay = limit * (0.5 + 0.5 * self.jitter())
        self.later(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key's work succeeded: its next failure starts from the shortest delay."""
        self._failures.pop(key, None)

    def drop(self, key: K) -> None:
        """The key's object is gone: no delayed wish of it is kept."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    async def get(self) -> K:
        """The next key. The caller says `done` when it is finished with it, however it went."""
        while True:
            self.tick()
            if self._ready:
                key = self._ready.popleft()
                self._waiting.discard(key)
                self._working.add(key)
                return key
            self._wake.clear()
            await self._wake.wait()

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def tick(self) -> None:
        """Moves what has become due to the waiting keys."""
        now = self.clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)
        self._arm()

    def _arm(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            delay = max(0.0, self._heap[0][0] - self.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake.set)
