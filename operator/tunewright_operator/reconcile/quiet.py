"""Kopf's storages that store nothing.

Kopf keeps the last state of an object and the progress of its handlers in annotations, and a memory
of every object in the process. We have no handler that would read them; writing the annotations
would be a write an object and 37 % more CPU, and the memories of all children are more than the cache.
"""

from __future__ import annotations

from typing import Any

from kopf import DiffBaseStorage, ProgressStorage
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory


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


class NoMemories(ResourceMemories):
    """Remembers no object from one event to the next. (`kopf.operator` takes it as an argument; the
    class itself has no public name.)"""

    async def recall(self, raw_body: Any, *, memobase: Any = None, **_: Any) -> ResourceMemory:
        return ResourceMemory(memo=memobase) if memobase is not None else ResourceMemory()
