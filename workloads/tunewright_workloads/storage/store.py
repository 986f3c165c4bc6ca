"""What the workloads need of a place that files are kept in, and no more.

Names are relative to the store's own URI and use `/`. Every write is atomic: a reader sees the old
file, the new one or none, never a part. `put` under a `tag` remembers which run wrote the file, so
that an interrupted run finds by digest what it had already finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.contract.uris import Uri


@dataclass(frozen=True)
class Entry:
    """One file. `version` changes whenever the content does (a generation, a commit, size and mtime)."""

    name: str
    size: int
    version: str


class Store(Protocol):
    """A directory, a prefix of a bucket, a repository."""

    uri: Uri

    def entries(self, below: str = "") -> list[Entry]:
        """Every file whose name begins with the directory `below`, sorted by name."""

    def exists(self, name: str) -> bool:
        """Whether the file is there. Directories are not files."""

    def get(self, name: str) -> bytes:
        """A small file's whole content. Raises FileNotFoundError."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size) of a file; fewer only at its end. Raises FileNotFoundError."""

    def fetch(self, entry: Entry, target: Path) -> None:
        """Copies a file to `target`, checked and resumable; atomic."""

    def put(
        self, name: str, source: Path | bytes, *, tag: str = "", digest: FileDigest | None = None
    ) -> None:
        """Writes a file, atomically; with a tag and a digest it counts as `finished` work of that tag.

        A `source` path may be moved away instead of copied.
        """

    def finished(self, tag: str) -> Mapping[str, FileDigest]:
        """The files put under `tag` whose content still has the digest it was put with."""

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there is no fault."""

    def claim(self, tag: str, holder: str) -> AbstractContextManager[None]:
        """Exclusive right to write here while the context lasts; waits for, or refuses, other writers."""

    def staging(self, work: Path) -> Path:
        """A directory to prepare files for `put` in, cheap to put from."""
