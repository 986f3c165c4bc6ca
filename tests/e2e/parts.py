"""How long each part of a long test took: said when it ends, and as a table at the end of the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Parts:
    """Named stretches of time, in the order in which they ended; seconds."""

    taken: list[tuple[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures what is inside; what fails is no part."""
        print(f"\n{name} ...", flush=True)
        began = time.monotonic()
        yield
        self.add(name, time.monotonic() - began)

    def add(self, name: str, seconds: float) -> None:
        """A stretch that was measured elsewhere."""
        self.taken.append((name, seconds))
        print(f"{seconds:7.1f} s  {name}", flush=True)

    def table(self) -> str:
        """One line a part, and the time from first to last: parts may lie side by side."""
        lines = [f"{seconds:7.1f} s  {name}" for name, seconds in self.taken]
        return "\n".join([*lines, f"{time.monotonic() - self.began:7.1f} s  in all"])
