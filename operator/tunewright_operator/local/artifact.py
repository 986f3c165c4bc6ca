"""Is what a finished stage made still what it made?"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from tunewright_workloads.contract.lineage import MANIFEST
from tunewright_workloads.contract.lineage import Manifest as Model


def wrong(path: Path) -> str | None:
    """What is wrong with the artifact at `path`, as the end of a sentence; None when nothing is.

    A marker that names what was written (a published model's manifest) is held against it, as whoever
    serves the model does: it reads every file, about a second per GB. Of others only the presence counts.
    """
    if not path.exists():
        return "is gone"
    if path.name != MANIFEST:
        return None
    try:
        files = Model.model_validate_json(path.read_bytes()).files
    except (OSError, ValidationError):
        return "cannot be read"
    for name, record in files.items():
        file = path.parent / name
        try:
            if file.stat().st_size != record.size or _sha256(file) != record.sha256:
                return f"does not describe {name}, which was changed"
        except FileNotFoundError:
            return f"names {name}, which is gone"
        except OSError as error:
            return f"names {name}, which cannot be read ({error.strerror})"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
