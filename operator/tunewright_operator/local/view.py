"""What a run shows: a progress bar a stage on a terminal, plain lines elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TextIO

from tunewright_workloads.contract.progress import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID


class View(Protocol):
    """Where the runner tells what happens."""

    def note(self, text: str) -> None: ...

    def begin(self, stage: str, attempt: int) -> None: ...

    def update(self, stage: str, progress: Progress) -> None: ...

    def end(self, stage: str, text: str) -> None: ...


def view(stream: TextIO | None = None) -> View:
    """Bars where `stream` is a terminal, lines otherwise."""
    stream = stream or sys.stderr
    return Bars(stream) if stream.isatty() else Lines(stream)


def figures(record: Progress) -> str:
    """`40/80  loss 0.1234  1,234 tokens/s  ETA 12 s`, with what is known."""
    parts = []
    if record.total_steps:
        parts.append(f"{record.step}/{record.total_steps}")
    elif record.step:
        parts.append(str(record.step))
    if record.loss is not None:
        parts.append(f"loss {record.loss:.4f}")
    if record.eval_loss is not None:
        parts.append(f"eval loss {record.eval_loss:.4f}")
    if record.tokens_per_second is not None:
        parts.append(f"{record.tokens_per_second:,.0f} tokens/s")
    if record.eta is not None and not record.done:
        parts.append(f"ETA {duration((record.eta - datetime.now(UTC)).total_seconds())}")
    if record.message:
        parts.append(record.message)
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`12 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Lines:
    """One line now and then, for logs and pipes."""

    EVERY = 5.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._shown: dict[str, tuple[float, str]] = {}

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def begin(self, stage: str, attempt: int) -> None:
        self._shown.pop(stage, None)
        self.note(f"{stage}: started" + (f" (attempt {attempt})" if attempt > 1 else ""))

    def update(self, stage: str, progress: Progress) -> None:
        text = figures(progress)
        last, before = self._shown.get(stage, (-self.EVERY, ""))
        now = time.monotonic()
        if text and text != before and (now - last >= self.EVERY or progress.done):
            self._shown[stage] = (now, text)
            self.note(f"{stage}: {text}")

    def end(self, stage: str, text: str) -> None:
        self.note(f"{stage}: {text}")


class Bars:
    """A live bar a stage; notes scroll above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Live

        self.console = Console(file=stream, highlight=False)
        self._live = Live(
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self.console,
            refresh_per_second=5,
        )
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        self.console.print(text, markup=False)

    def begin(self, stage: str, attempt: int) -> None:
        label = stage if attempt == 1 else f"{stage} #{attempt}"
        self._task = self._live.add_task(label, total=None, figures="starting")
        self._live.start()

    def update(self, stage: str, progress: Progress) -> None:
        if self._task is not None:
            self._live.update(
                self._task,
                total=progress.total_steps or None,
                completed=progress.step,
                figures=figures(progress),
            )

    def end(self, stage: str, text: str) -> None:
        if self._task is not None:
            self._live.stop()
            self._live.remove_task(self._task)
            self._task = None
        self.note(f"{stage}: {text}")
