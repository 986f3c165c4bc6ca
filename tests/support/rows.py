"""Dataset files, rows and a tokenizer for tests of data and training."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tunewright_workloads import samples
from tunewright_workloads.contract.configs import DatasetConfig
from tunewright_workloads.data import dataset, tokenizer
from tunewright_workloads.gemma.architecture import Architecture


@cache
def words() -> tokenizer.Tokenizer:
    """The tiny model's tokenizer."""
    return tokenizer.load(Path(samples.__file__).parent / "tiny")


def environment(**more: str) -> dict[str, str]:
    """Of a child process that imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def user(content: Any = "How?", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any = "So.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str = "look", arguments: Any = None, number: str = "1") -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments or {}}}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [user(), assistant()], **more}


def write(path: Path, *rows: Any) -> Path:
    """A JSONL file; strings and bytes are written as they are."""
    lines = [
        r
        if isinstance(r, bytes)
        else (r if isinstance(r, str) else json.dumps(r)).encode("utf-8", "surrogatepass")
        for r in rows
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def config(**more: Any) -> DatasetConfig:
    return DatasetConfig(**{"train": ("file:///data/train.jsonl",), "max_length": 256, **more})


def build(path: Path, **more: Any) -> dataset.Dataset:
    return dataset.build([dataset.Source(path.name, path)], words(), config(**more))


def arch(**more: object) -> Architecture:
    """The 31B's sizes, six layers of it."""
    sizes = {
        "class_name": "Gemma4ForConditionalGeneration", "layers": 6, "globals": (False,) * 5 + (True,), "embed": 5376,
        "hidden": 21504, "heads": 32, "local_kv_heads": 16, "global_kv_heads": 4, "head_dim": 256,
        "global_head_dim": 512, "window": 1024, "vocab": 262144, "k_eq_v": True,
    }  # fmt: skip
    return Architecture(**{**sizes, **more})  # type: ignore[arg-type]
