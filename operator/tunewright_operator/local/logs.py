"""The log of a stage: every attempt below a line of its own, and the end of one for a message."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tunewright_operator.local.pod import Command

TAIL = 20
"""Lines of the log that are shown when a stage fails."""

WIDTH = 300
"""Characters of such a line."""


def begin(log: Path, attempt: int, command: Command) -> int:
    """Begins an attempt in the log. Returns where its output begins, in bytes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with log.open("ab") as file:
        file.write(f"--- attempt {attempt} at {now}: {' '.join(command.argv)}\n".encode())
        return file.tell()


def tail(log: Path, offset: int) -> str:
    """The last lines that this attempt wrote."""
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(offset, file.tell() - 64 * 1024))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(line if len(line) <= WIDTH else f"{line[:WIDTH]}…" for line in lines[-TAIL:])
