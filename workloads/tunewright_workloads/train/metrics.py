"""One JSON line a step, plain lines on stdout, and the newest progress record.

A resumed run cuts metrics.jsonl back to its checkpoint, so that the file tells one story however
often the run was killed.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

from tunewright_workloads.contract.progress import Progress, ProgressFile
from tunewright_workloads.train.output import METRICS, Output

_RECENT = 20


def say(text: str) -> None:
    """A line for people and for `kubectl logs`; of several workers on one machine the first one speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


class Metrics:
    """Records steps. `start` before the first one, `close` at the end."""

    def __init__(
        self, output: Output, progress: ProgressFile, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.output, self.progress, self.total, self.clock = output, progress, total, clock
        self.lines: list[dict[str, Any]] = []
        self.observers: list[Callable[[dict[str, Any]], None]] = []
        self.checkpoint: int | None = None
        self.eval_loss: float | None = None
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._file: TextIO | None = None
        self._began = clock()
        self._said = -1e9

    def start(self, step: int) -> None:
        """Continues after `step` steps: later lines of an earlier attempt are forgotten."""
        self.lines = [line for line in read(self.output) if line.get("step", 0) <= step]
        attempt = 1 + sum(line["event"] == "start" for line in self.lines)
        self.output.write(METRICS, "".join(json.dumps(line) + "\n" for line in self.lines))
        if self.output.chief:
            self._file = self.output.path(METRICS).open("a", encoding="utf-8")
        self.add({"event": "start", "step": step, "attempt": attempt})

    def add(self, line: dict[str, Any]) -> None:
        line = {**line, "elapsed": round(self.clock() - self._began, 3)}
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        for observer in self.observers:
            observer(line)

    def step(self, step: int, epoch: float, values: dict[str, float], useful: int, seconds: float) -> None:
        """An optimizer step: its token-weighted mean loss, counts and time."""
        self.add(
            {"event": "step", "step": step, "epoch": round(epoch, 4), **values, "useful": useful,
             "seconds": round(seconds, 4)}
        )  # fmt: skip
        self._recent.append(seconds)
        pace = statistics.median(self._recent)
        self.show(step, epoch, values["loss"], useful / pace if pace else None, pace)

    def show(self, step: int, epoch: float, loss: float, rate: float | None, pace: float) -> None:
        left = timedelta(seconds=pace * (self.total - step))
        self._last = Progress(
            stage="train", step=step, total_steps=self.total, epoch=round(epoch, 4), loss=loss,
            eval_loss=self.eval_loss, tokens_per_second=rate, eta=datetime.now(UTC) + left,
            checkpoint=self.checkpoint, message="training",
        )  # fmt: skip
        self.progress.write(self._last)
        now = self.clock()
        if now - self._said >= 2 or step == self.total or step == 1:
            self._said = now
            say(
                f"step {step}/{self.total}  epoch {epoch:.2f}  loss {loss:.4f}  "
                f"{rate or 0:,.0f} tokens/s  left {_span(left)}"
            )

    def committed(self, step: int) -> None:
        """A checkpoint is safe."""
        self.checkpoint = step

    def publish(self) -> None:
        """Makes the lines safe. Before a checkpoint, not after: what a resumed run has too many is cut
        off, what it lacks is lost."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self.output.publish(METRICS)

    def message(
        self,
        text: str,
        *,
        done: bool = False,
        step: int | None = None,
        artifacts: dict[str, str] | None = None,
    ) -> None:
        """A state that is not a step: loading, compiling, preempted, done (with what was published)."""
        last = getattr(self, "_last", None) or Progress(stage="train", total_steps=self.total, step=step or 0)
        record = last.model_copy(
            update={"message": text, "done": done, "checkpoint": self.checkpoint,
                    "eval_loss": self.eval_loss, "time": datetime.now(UTC), "artifacts": artifacts}
        )  # fmt: skip
        ProgressFile(self.progress.path, every=0).write(record)
        self._last = record

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self.output.publish(METRICS)

    def steps(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "step"]

    def attempts(self) -> int:
        return sum(line["event"] == "start" for line in self.lines)

    def wall(self) -> float:
        """Seconds over all attempts that are on record."""
        total, last = 0.0, 0.0
        for line in self.lines:
            if line["event"] == "start":
                total, last = total + last, 0.0
            last = max(last, line.get("elapsed", 0.0))
        return total + last


def read(output: Output) -> list[dict[str, Any]]:
    """All whole lines; a line that a kill cut off ends the file."""
    lines: list[dict[str, Any]] = []
    for raw in (output.read(METRICS) or b"").splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            break
        lines.append(line)
    return lines


def _span(left: timedelta) -> str:
    seconds = max(0, round(left.total_seconds()))
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
