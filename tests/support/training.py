"""Whole training runs of the tiny model, in this process or in a child that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.rows import environment
from tunewright_workloads import samples

TINY: dict[str, Any] = {
    "job": "test/tiny",
    "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
    "dataset": {"train": [f"file://{samples.path('faq')}"], "maxLength": 48},
    "adapter": {"rank": 4, "alpha": 8},
    "training": {"steps": 9, "globalBatchSize": 4, "learningRate": 5e-3, "warmupSteps": 2},
    "mesh": {"accelerator": "cpu"},
    "computeDtype": "float32",
    "checkpointEvery": 3,
    "checkpointKeep": 3,
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts, one over the other; None removes a key."""
    result = dict(base)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result


class Job:
    """A configuration below one directory, with what its run leaves there."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.directory, self.out = directory, directory / "out"
        directory.mkdir(parents=True, exist_ok=True)
        self.configure(**changes)

    def configure(self, **changes: Any) -> None:
        own = {
            "output": f"file://{self.out}",
            "work": str(self.directory / "work"),
            "progress": str(self.directory / "progress.json"),
        }
        self.config = merged({**TINY, **own}, changes)
        self.file = self.directory / "train.json"
        self.file.write_text(json.dumps(self.config))

    def here(self) -> int:
        """Runs in this process; returns the exit code."""
        from tunewright_workloads.train.__main__ import main

        return main(["--config", str(self.file)])

    def child(self, code: str | None = None, **env: str) -> subprocess.Popen[str]:
        """Runs in a process of its own, after `code`."""
        command = [sys.executable, "-m", "tunewright_workloads.train", "--config", str(self.file)]
        if code is not None:
            run = "\nimport sys\nfrom tunewright_workloads.train.__main__ import main\nsys.exit(main(sys.argv[1:]))"
            command = [sys.executable, "-c", code + run, "--config", str(self.file)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**env)
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    def losses(self) -> dict[int, float]:
        """The loss of each step, as last recorded."""
        return {line["step"]: line["loss"] for line in self.lines() if line["event"] == "step"}

    def report(self) -> dict[str, Any]:
        return json.loads((self.out / "report.json").read_text())

    def progress(self) -> dict[str, Any]:
        return json.loads((self.directory / "progress.json").read_text())

    def committed(self) -> list[int]:
        below = self.out / "checkpoints"
        return sorted(int(p.name) for p in below.iterdir() if p.name.isdigit()) if below.is_dir() else []

    def adapter(self, step: int) -> dict[str, np.ndarray]:
        """The adapter of a checkpoint by dotted path."""
        import jax
        import orbax.checkpoint as ocp

        # As numpy: a checkpoint of another topology has shardings that do not exist here.
        path = self.out / "checkpoints" / str(step) / "adapter"
        with ocp.PyTreeCheckpointer() as reader:
            wanted = jax.tree.map(
                lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(path).item_metadata.tree
            )
            tree = reader.restore(path, restore_args=wanted)
        found: dict[str, np.ndarray] = {}

        def walk(node: Any, path: str) -> None:
            if isinstance(node, Mapping):
                for key, value in node.items():
                    walk(value, f"{path}.{key}".strip("."))
            else:
                found[path] = np.asarray(node)

        walk(tree, "")
        return found
