"""Ctrl-C and SIGTERM as a question that the runner asks, not as an exception at any line."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Inside the `with` block: `asked` is the first signal's number, `twice` says that a second came."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.twice = False
        self._event = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.twice = self.asked is not None
        self.asked = self.asked or number
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleeps, at most until a signal comes. Returns whether one ever came."""
        return self._event.wait(seconds)
