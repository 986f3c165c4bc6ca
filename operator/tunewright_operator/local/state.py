"""What a run remembers on disk: who is running, which stages are done, and of which spec."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunewright_operator.plan.stage import Stage
from tunewright_workloads.contract.faults import Fault, UserError


@dataclass(frozen=True)
class Folders:
    """Where things are below the state directory (`.tunewright`)."""

    root: Path

    def home(self, namespace: str, name: str) -> Path:
        return self.root / namespace / name

    def pod(self, namespace: str, name: str, stage: str) -> Path:
        return self.home(namespace, name) / stage

    def log(self, namespace: str, name: str, stage: str) -> Path:
        return self.home(namespace, name) / "logs" / f"{stage}.log"

    def pidfile(self, namespace: str, name: str, stage: str) -> Path:
        return self.home(namespace, name) / "pids" / f"{stage}.json"

    @property
    def claims(self) -> Path:
        return self.root / "claims"

    @property
    def cache(self) -> Path:
        return self.root / "cache" / "jax"


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Holds the lock file, or says which process does. It is freed when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                Fault(
                    what,
                    f"is being run by another process (pid {holder})",
                    None,
                    "Wait for it, or end it with Ctrl-C.",
                )
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class State:
    """Which stages of one resource are done. Replaced as a whole, never written in place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.data = {"stages": {}}
        except ValueError:
            self.data = {}
        if not _whole(self.data):
            fix = "Start over with --fresh, or restore the file."
            raise UserError(Fault(str(path), "is damaged: it is not the record of a run", None, fix))

    def record(self, stage: str) -> dict[str, Any]:
        """What is known of a stage; empty when it never started."""
        return self.data["stages"].get(stage, {})

    def begin(self, stage: Stage, inputs: dict[str, Any]) -> int:
        """Notes that a stage is about to run. Returns the number of this attempt, from 1."""
        record = self.record(stage.name)
        attempt = int(record.get("attempts", 0)) + 1
        config = stage.config.model_dump(mode="json", by_alias=True) if stage.config else {}
        self.data["stages"][stage.name] = {
            "digest": stage.digest(),
            "config": config,
            "inputs": inputs,
            "attempts": attempt,
        }
        self._save()
        return attempt

    def finish(self, stage: Stage) -> None:
        record = self.record(stage.name)
        record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        self._save()

    def reopen(self, stage: str) -> None:
        """Forgets that a stage (whose result is gone) was done."""
        if self.record(stage).pop("finished", None):
            self._save()

    def output(self, uri: str) -> None:
        """Keeps the URI of the resulting model, for an endpoint that is run later."""
        if self.data.get("output") != uri:
            self.data["output"] = uri
            self._save()

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(self.data, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


def _whole(data: Any) -> bool:
    """Whether a record has the form that is written here."""
    stages = data.get("stages") if isinstance(data, dict) else None
    return isinstance(stages, dict) and all(
        isinstance(record, dict) and "digest" in record for record in stages.values()
    )


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Paths whose values differ between two configurations, `training.steps: 80 -> 100`.

    A key that only one of them has is no difference: configurations are written in full, so it came
    or went with a release.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[str] = []
        for key in sorted(old.keys() & new.keys()):
            found += differences(old[key], new[key], f"{path}.{key}" if path else key)
        return found
    return [] if old == new else [f"{path}: {json.dumps(old)} -> {json.dumps(new)}"]
