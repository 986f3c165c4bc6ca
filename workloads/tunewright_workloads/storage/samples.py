"""sample://: data that ships inside the package."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

_MODELS = ("gemma-4-tiny",)


def fetch(name: str, work: Path, place: str) -> Path:
    """The sample's path; a model is written once below `work`. Raises UserError for an unknown name."""
    if name in _MODELS:
        return _tiny(work / "samples" / name)
    from tunewright_workloads import samples

    return samples.path(name, place)


def _tiny(target: Path) -> Path:
    if target.is_dir():
        return target
    from tunewright_workloads.gemma import tiny

    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        tiny.write(temporary)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # anything but "another process was first", whose bytes are the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
