"""The progress record: what a workload says of itself while it runs.

The workload replaces one small JSON document, never appends; whoever shows it (the operator's
status, the CLI's progress bar) sees the newest state and cannot fall behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Stage = Literal["preflight", "train", "merge", "evaluate", "serve", "bench"]


class Progress(BaseModel):
    """One state of one stage. Field names are those of `status.progress`, plus `stage` and `message`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    stage: Stage
    message: str = ""
    step: int = Field(0, ge=0, description="Optimizer steps done (train), tensors done (merge)")
    total_steps: int = Field(0, ge=0, description="0 while unknown")
    epoch: float = Field(0.0, ge=0, description="Passes over the training data, with fraction")
    loss: float | None = Field(None, description="Token-weighted mean loss of the last step, nats")
    eval_loss: float | None = None
    tokens_per_second: float | None = Field(
        None, description="Useful (trained-on or attended) tokens, not padding"
    )
    eta: datetime | None = Field(None, description="When the stage is expected to end, UTC")
    checkpoint: int | None = Field(None, description="Last committed checkpoint's step")
    artifacts: dict[str, str] | None = Field(
        None, description="Digests of what was published or read: merged, adapter, base, dataset; revision"
    )
    done: bool = False
    time: datetime = Field(default_factory=lambda: datetime.now(UTC))

    def line(self) -> str:
        """One JSON line, camelCase, without empty fields."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class ProgressFile:
    """Writes the newest `Progress` to a file, atomically, at most once in `every` seconds.

    A record that is `done`, or that commits a new checkpoint, is written at once.
    """

    def __init__(
        self, path: Path | str | None, every: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = Path(path) if path else None
        self.every, self.clock = every, clock
        self._last: float | None = None
        self._checkpoint: int | None = None

    def write(self, record: Progress) -> bool:
        """Returns whether the record was written (False: too soon after the last one)."""
        if self.path is None:
            return False
        now = self.clock()
        urgent = record.done or record.checkpoint != self._checkpoint
        if self._last is not None and not urgent and now - self._last < self.every:
            return False
        self._last, self._checkpoint = now, record.checkpoint
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(record.line() + "\n", encoding="utf-8")
        temporary.replace(self.path)
        return True


def read(path: Path | str) -> Progress | None:
    """The newest record, or None while there is none."""
    try:
        return Progress.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
