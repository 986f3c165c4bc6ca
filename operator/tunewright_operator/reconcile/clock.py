"""Time, passed in: tests turn it by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the loop asks of time."""

    def now(self) -> datetime:
        """The time of day, UTC: what is written into status."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never backwards: what delays are measured with."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
