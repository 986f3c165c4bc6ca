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


@dataclass(frozen=True)
class Finished:
    """A file that an earlier run with the same tag has put, with the note that it left."""

    digest: FileDigest
    note: str


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

    def digest(self, name: str) -> str | None:
        """A file's digest as the place itself names it, which `fetch` checks: `sha256:hex` or
        `crc32c:base64`; None where it names none."""

    def fetch(self, entry: Entry, target: Path) -> None:
        """Copies a file to `target`, checked and resumable; atomic."""

    def put(
        self,
        name: str,
        source: Path | bytes,
        *,
        tag: str = "",
        digest: FileDigest | None = None,
        note: str = "",
    ) -> None:
        """Writes a file, atomically; with a tag and a digest it counts as `finished` work of that tag.

        A `source` path is gone afterwards: it may be moved instead of copied.
        """

    def publish(self, name: str, data: bytes) -> None:
        """Writes the file that makes everything else valid. Inside `claim`, after `remove` of an old one.

        Fails rather than to overwrite one that another writer has put there meanwhile.
        """

    def finished(self, tag: str) -> dict[str, Finished]:
        """The files put under `tag` whose content still has the digest it was put with."""

    def ours(self, name: str) -> bool:
        """Whether a file was put under a tag, or adopted, and is no stranger's."""

    def adopt(self, files: Mapping[str, FileDigest]) -> None:
        """Makes files `ours` that a manifest vouches for, before that manifest goes."""

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there is no fault."""

    def claim(self, tag: str, holder: str) -> AbstractContextManager[None]:
        """Exclusive right to write here while the context lasts; waits for, or refuses, other writers."""

    def staging(self, work: Path) -> Path:
        """A directory to prepare files for `put` in, cheap to put from."""
