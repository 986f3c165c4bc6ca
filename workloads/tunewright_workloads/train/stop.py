"""Signals: what is worth keeping is saved before the process ends.

Before a step is done there is nothing to save, and the signal ends the process at once (143 for
SIGTERM). Afterwards it is only noted; the loop ends the step, saves and leaves. A second signal ends
the process at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether somebody asked this process to end."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def arm(self) -> None:
        """From now on there is something to save."""
        if not self._before:
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}

    def disarm(self) -> None:
        """What signals did before is in force again."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.asked = signal.Signals(number).name
