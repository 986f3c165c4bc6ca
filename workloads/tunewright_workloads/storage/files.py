"""file://: a directory of this machine, of a mounted claim or of a mounted bucket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.contract.uris import Uri
from tunewright_workloads.storage import digests
from tunewright_workloads.storage.faults import StorageError
from tunewright_workloads.storage.store import Entry, Finished

STATE = ".tunewright"
"""Directory for journals, locks and temporary files inside a store; hidden from `entries`."""

_BUFFER = 8 << 20


class FileStore:
    """A directory. It is made by the first write."""

    def __init__(self, uri: Uri) -> None:
        self.uri, self.root = uri, Path(uri.path)

    def entries(self, below: str = "") -> list[Entry]:
        found: list[Entry] = []
        top = self.root / below
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(d for d in folders if d != STATE)
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    found.append(_entry(path, path.relative_to(self.root).as_posix()))
        return sorted(found, key=lambda e: e.name)

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def read(self, name: str, offset: int, size: int) -> bytes:
        with (self.root / name).open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size)

    def digest(self, name: str) -> str | None:
        return None  # a file system names none

    def fetch(self, entry: Entry, target: Path) -> None:
        copy(self.root / entry.name, target)

    def put(
        self,
        name: str,
        source: Path | bytes,
        *,
        tag: str = "",
        digest: FileDigest | None = None,
        note: str = "",
    ) -> None:
        target = self.root / name
        try:
            if tag and digest is not None:
                # Before the file, not after: a kill in between must leave no file of unknown origin.
                self._record(tag, name, digest, note)
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                write(target, source, self._hidden(target))
            else:
                self._move(source, target)
        except OSError as error:
            raise unusable(self.uri, error) from None

    def _move(self, source: Path, target: Path) -> None:
        sync(source)
        try:
            source.replace(target)
        except OSError as error:
            # Two mounts, perhaps of one file system (the volumes of a pod): device numbers do not tell.
            if error.errno != errno.EXDEV:
                raise
            copy(source, target, self._hidden(target))
            source.unlink()
        sync(target.parent)

    def publish(self, name: str, data: bytes) -> None:
        write(self.root / name, data, self._hidden(self.root / name))

    def finished(self, tag: str) -> dict[str, Finished]:
        found = {}
        for name, record in self._journal(tag).items():
            path, size = self.root / name, record.digest.size
            if (
                path.is_file()
                and path.stat().st_size == size
                and digests.sha256(path) == record.digest.sha256
            ):
                found[name] = record
        return found

    def ours(self, name: str) -> bool:
        return any(name in self._journal(path.stem) for path in (self.root / STATE).glob("*.jsonl"))

    def adopt(self, files: Mapping[str, FileDigest]) -> None:
        for name, digest in files.items():
            self._record("adopted", name, digest, "")

    def remove(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        sync(path.parent)

    @contextlib.contextmanager
    def claim(self, tag: str, holder: str) -> Iterator[None]:
        """Waits for the other writer: the system frees its lock however it ends."""
        path = self.root / STATE / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(self.uri, error) from None
        file = _lock(path, self.uri)
        try:
            yield
        except BaseException:
            os.close(file)
            raise
        else:
            shutil.rmtree(path.parent, ignore_errors=True)  # while the lock is held: see _lock
            os.close(file)

    def staging(self, work: Path) -> Path:
        """Inside the store, so that `put` is a rename."""
        path = self.root / STATE / "staging"
        path.mkdir(parents=True, exist_ok=True)
        for old in path.iterdir():
            old.unlink()
        return path

    def _hidden(self, target: Path) -> Path | None:
        """Inside a claim temporary files lie in the state directory: what a kill leaves is no stranger."""
        state = self.root / STATE
        return state / temporary(target).name if state.is_dir() else None

    def _journal(self, tag: str) -> dict[str, Finished]:
        path, found = self.root / STATE / f"{tag}.jsonl", {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    name, size, sha256, note = json.loads(line)
                    found[name] = Finished(FileDigest(size=size, sha256=sha256), note)
                except ValueError:
                    continue  # the line that the run died in; its file is simply not finished
        return found

    def _record(self, tag: str, name: str, digest: FileDigest, note: str) -> None:
        path = self.root / STATE / f"{tag}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            # The newline comes first: a line torn by a kill must not swallow the next one.
            file.write("\n" + json.dumps([name, digest.size, digest.sha256, note]))
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: Path, uri: Uri) -> Iterator[None]:
    """Excludes other processes while the context lasts; the lock's file is gone afterwards."""
    file = _lock(path, uri)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: see _lock
        os.close(file)


def _lock(path: Path, uri: Uri) -> int:
    said = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # the holder removed the directory in between
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                print(f"Another process writes {uri}; waiting for it.", file=sys.stderr, flush=True)
                said = True
            fcntl.flock(file, fcntl.LOCK_EX)
        # The holder removes the lock's file at its end: a lock on a removed file excludes nobody.
        try:
            if os.stat(path).st_ino == os.fstat(file).st_ino:  # noqa: PTH116
                return file
        except FileNotFoundError:
            pass
        os.close(file)


def _entry(path: Path, name: str) -> Entry:
    stat = path.stat()
    return Entry(name, stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}")


def temporary(target: Path) -> Path:
    """A hidden name beside `target` that no other process or thread uses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def write(target: Path, data: bytes, hidden: Path | None = None) -> None:
    """Replaces `target` with `data`, atomically and on the disk before the name is.

    hidden: name of the temporary file; default: one beside the target.
    """
    hidden = hidden or temporary(target)
    try:
        with hidden.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
        sync(target.parent)
    finally:
        hidden.unlink(missing_ok=True)


def copy(source: Path, target: Path, hidden: Path | None = None) -> None:
    """Copies a file with a small buffer, atomically. hidden: see `write`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = hidden or temporary(target)
    try:
        with source.open("rb") as read, hidden.open("wb") as file:
            shutil.copyfileobj(read, file, _BUFFER)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
        sync(target.parent)
    finally:
        hidden.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


_USERS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}


def unusable(uri: Uri, error: OSError) -> Exception:
    """What to raise for a path that cannot be written: the user's to change, or the machine's."""
    if isinstance(error, StorageError) or error.errno not in _USERS:
        return error if isinstance(error, StorageError) else StorageError(f"{uri}: {error.strerror or error}")
    fix = "Choose another place."
    if error.errno in (errno.EACCES, errno.EPERM):
        fix = "Change the owner or the mode, or mount the volume with fsGroup."
    rule = f"cannot be written by user {os.getuid()}: {error.strerror}"
    return UserError(Fault(str(uri), rule, show(str(error.filename)) if error.filename else None, fix))
