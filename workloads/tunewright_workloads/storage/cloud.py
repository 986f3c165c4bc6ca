"""gs://: objects below a prefix of a bucket.

Transfers are checked by crc32c, cut into ranges or chunks of `CHUNK` bytes (so memory is
`THREADS * CHUNK`), retried with exponential backoff, and continued where they broke off. Inside a
`claim` every write names the generation that it replaces, so that a writer which lost its claim
while it was asleep cannot touch what its successor has written.

STORAGE_EMULATOR_HOST is honoured by the client library (tests, and local emulators).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.cloud import storage as gcs
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.contract.uris import Uri
from tunewright_workloads.storage import digests, files, requests
from tunewright_workloads.storage.faults import LostClaimError, StorageError
from tunewright_workloads.storage.files import STATE
from tunewright_workloads.storage.store import Entry, Finished

CHUNK = 8 << 20
"""bytes of one range of a download and of one chunk of an upload; a multiple of 256 KiB"""
THREADS = 6
PATIENCE = 300.0
"""seconds that one request is retried for"""
TIMEOUT = (10.0, 60.0)
"""seconds to connect, and between two parts of an answer"""
_SLOTS = threading.BoundedSemaphore(THREADS)  # of the process: several files at once share it
LEASE = 120.0
"""seconds after which a claim that was not refreshed counts as abandoned"""

_CLAIM = f"{STATE}/claim.json"
_ADOPTED = f"{STATE}/adopted.json"
_TAG, _SHA, _NOTE, _CRC = "tunewright-tag", "tunewright-sha256", "tunewright-note", "tunewright-crc32c"
_TRIES = 4
T = TypeVar("T")


class CloudStore:
    """The objects whose names begin with `<path>/`; `path` itself may also be one object."""

    def __init__(self, uri: Uri, place: str = "uri", client: gcs.Client | None = None) -> None:
        self.uri, self.place = uri, place
        self._client = client or requests.client()
        self._call = requests.Calls(uri, place, self._client)
        self._bucket = self._client.bucket(uri.root)
        self._prefix = f"{uri.path.strip('/')}/" if uri.path.strip("/") else ""
        self._retry: Retry = DEFAULT_RETRY.with_timeout(PATIENCE).with_delay(0.5, 30.0, 2.0)
        self._expected: dict[str, int] | None = None
        """Inside a claim: the generation of every object as we know it."""
        self._claimed: tuple[str, int] | None = None
        self._adopted: set[str] | None = None

    # Reading

    def entries(self, below: str = "") -> list[Entry]:
        return [Entry(n, b.size, str(b.generation)) for n, b in self._list(below).items()]

    def entry(self, name: str) -> Entry | None:
        """One object, None when there is none."""
        blob = self._get(name)
        return None if blob is None else Entry(name, blob.size, str(blob.generation))

    def exists(self, name: str) -> bool:
        return self._get(name) is not None

    def get(self, name: str) -> bytes:
        blob = self._get(name)
        if blob is None:
            raise FileNotFoundError(f"{self.uri}/{name}")
        for _ in range(_TRIES):
            data = self._range(blob, 0, blob.size)
            if digests.crc32c(data) == blob.crc32c:
                return data
        raise self._corrupt(name)

    def read(self, name: str, offset: int, size: int) -> bytes:
        blob = self._bucket.blob(self._prefix + name)
        return self._range(blob, offset, size)

    def digest(self, name: str) -> str | None:
        blob = self._get(name)
        return None if blob is None or blob.crc32c is None else f"crc32c:{blob.crc32c}"

    def fetch(self, entry: Entry, target: Path) -> None:
        """Downloads one generation of an object in parallel ranges.

        Finished ranges are kept beside the target; what a killed process has fetched is not fetched
        again. Reused without a request when the record beside it has the same generation.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        record = target.with_name(f".{target.name}.fetched")
        stamp = json.dumps({"source": f"{self.uri}/{entry.name}", "version": entry.version})
        if _read(record) == stamp and target.is_file() and target.stat().st_size == entry.size:
            return
        blob = self._bucket.blob(self._prefix + entry.name, generation=int(entry.version))
        try:
            self._call("storage.objects.get", lambda: blob.reload(**self._how()), name=entry.name)
        except FileNotFoundError:
            raise StorageError(
                f"{self.uri}/{entry.name}: was replaced or removed while it was read"
            ) from None
        with files.locked(target.with_name(f".{target.name}.lock"), self.uri):
            if _read(record) == stamp and target.is_file() and target.stat().st_size == entry.size:
                return  # another process was first
            part = target.with_name(f".{target.name}.part")
            for _ in range(_TRIES):
                self._ranges(blob, entry, part, stamp)
                if digests.crc32c(part) == blob.crc32c:
                    break
                part.unlink()
            else:
                raise self._corrupt(entry.name)
            files.sync(part)
            part.replace(target)
            files.write(record, stamp.encode())

    def _ranges(self, blob: gcs.Blob, entry: Entry, path: Path, stamp: str) -> None:
        journal = path.with_name(f"{path.name}s")
        lines = _read(journal).splitlines()
        done = (
            {int(n) for n in lines[1:] if n.isdigit()} if lines[:1] == [stamp] and path.is_file() else set()
        )
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(number, entry.size)
            todo = [at for at in range(0, entry.size, CHUNK) if at not in done]
            lock = threading.Lock()
            with journal.open("a" if done else "w", encoding="utf-8") as log:
                if not done:
                    log.write(stamp + "\n")

                def one(at: int) -> None:
                    with _SLOTS:
                        part(at)

                def part(at: int) -> None:
                    data = memoryview(self._range(blob, at, min(CHUNK, entry.size - at)))
                    if len(data) != min(CHUNK, entry.size - at):
                        raise StorageError(f"{self.uri}/{entry.name}: the answer was cut off")
                    position = at
                    while len(data):
                        count = os.pwrite(number, data, position)
                        data, position = data[count:], position + count
                    with lock:
                        log.write(f"{at}\n")
                        log.flush()

                with ThreadPoolExecutor(THREADS, "range") as pool:
                    for future in [pool.submit(one, at) for at in todo]:
                        try:
                            future.result()
                        except BaseException:
                            pool.shutdown(cancel_futures=True)
                            raise
        finally:
            os.close(number)
        journal.unlink()

    def _range(self, blob: gcs.Blob, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        name = blob.name.removeprefix(self._prefix)

        def once() -> bytes:
            data = blob.download_as_bytes(
                start=offset, end=offset + size - 1, raw_download=True, checksum=None,
                timeout=TIMEOUT, retry=self._retry,
            )  # fmt: skip
            if len(data) > size:
                raise StorageError(f"{self.uri}/{name}: the server ignores ranges")
            return bytes(data)

        return self._call("storage.objects.get", once, name=name)

    # Writing

    def put(
        self,
        name: str,
        source: Path | bytes,
        *,
        tag: str = "",
        digest: FileDigest | None = None,
        note: str = "",
    ) -> None:
        crc = digests.crc32c(source)
        metadata = {_CRC: crc}
        if tag and digest is not None:
            metadata |= {_TAG: tag, _SHA: digest.sha256, _NOTE: note}
        self._upload(name, source, crc, metadata)
        if isinstance(source, Path):
            source.unlink(missing_ok=True)

    def publish(self, name: str, data: bytes) -> None:
        self._upload(name, data, digests.crc32c(data), {_CRC: digests.crc32c(data)})

    def _upload(self, name: str, source: Path | bytes, crc: str, metadata: dict[str, str]) -> None:
        if self._expected is not None and self._claimed is None:
            raise LostClaimError(f"{self.uri}: another writer took over; this one stops")
        for _ in range(_TRIES):
            before = None if self._expected is None else self._expected.get(name, 0)
            try:
                generation = self._send(name, source, crc, metadata, before)
            except api.PreconditionFailed:
                there = self._get(name)
                same = there is not None and there.crc32c == crc and dict(there.metadata or {}) == metadata
                if not same:
                    self._still_ours()
                    if self._expected is not None:
                        self._expected[name] = 0 if there is None else there.generation
                    continue
                assert (
                    there is not None
                )  # our own write, whose answer was lost, or a twin's of the same bytes
                generation = there.generation
            except DataCorruption:
                if self._expected is not None:  # the library has removed what arrived damaged
                    there = self._get(name)
                    self._expected[name] = 0 if there is None else there.generation
                continue
            if self._expected is not None:
                self._expected[name] = generation
            return
        raise self._corrupt(name)

    def _send(
        self, name: str, source: Path | bytes, crc: str, metadata: dict[str, str], before: int | None
    ) -> int:
        blob = self._bucket.blob(self._prefix + name, chunk_size=CHUNK)
        blob.metadata = metadata
        how = {
            "checksum": "crc32c", "if_generation_match": before, "timeout": TIMEOUT, "retry": self._retry,
            "content_type": "application/json" if name.endswith(".json") else "application/octet-stream",
        }  # fmt: skip

        def once() -> None:
            if isinstance(source, bytes):
                blob.upload_from_string(source, **how)
            else:
                with source.open("rb") as file:
                    blob.upload_from_file(file, size=source.stat().st_size, **how)

        self._call("storage.objects.create", once, name=name)
        if blob.crc32c != crc:
            raise DataCorruption(None, f"{name}: crc32c {blob.crc32c} at the server, {crc} here")
        return int(blob.generation)

    def finished(self, tag: str) -> dict[str, Finished]:
        found = {}
        for name, blob in self._list().items():
            data = blob.metadata or {}
            if data.get(_TAG) == tag and data.get(_CRC) == blob.crc32c:
                found[name] = Finished(FileDigest(size=blob.size, sha256=data[_SHA]), data.get(_NOTE, ""))
        return found

    def ours(self, name: str) -> bool:
        if self._adopted is None:
            adopted = self._get(_ADOPTED)
            self._adopted = set(json.loads(self.get(_ADOPTED))) if adopted else set()
        blob = self._get(name)
        return name in self._adopted or (blob is not None and _TAG in (blob.metadata or {}))

    def adopt(self, names: Mapping[str, FileDigest]) -> None:
        data = json.dumps(sorted(names)).encode()
        self._send(_ADOPTED, data, digests.crc32c(data), {}, None)
        self._adopted = set(names)

    def remove(self, name: str) -> None:
        def once() -> None:
            blob = self._bucket.blob(self._prefix + name)
            with contextlib.suppress(api.NotFound):
                blob.delete(**self._how())

        self._call("storage.objects.delete", once, name=name)
        if self._expected is not None:
            self._expected.pop(name, None)

    def staging(self, work: Path) -> Path:
        path = work / "staging"
        path.mkdir(parents=True, exist_ok=True)
        for old in path.iterdir():
            old.unlink()
        return path

    # Claims

    @contextlib.contextmanager
    def claim(self, tag: str, holder: str) -> Iterator[None]:
        """Waits while a writer with another tag is alive.

        Two writers with one tag write the same bytes and may both go on: a retry does not wait for the
        lease of the pod that it replaces.
        """
        self._take(tag, holder)
        self._expected = {n: b.generation for n, b in self._list().items()}
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(tag, holder, stop), daemon=True)
        beat.start()
        try:
            yield
            self.remove(_ADOPTED)
        finally:
            stop.set()
            beat.join()
            self._expected, self._adopted = None, None
            self._release()

    def _take(self, tag: str, holder: str) -> None:
        said = False
        while True:
            blob = self._get(_CLAIM)
            if blob is None:
                before = 0
            else:
                before = blob.generation
                other = self._claimant(blob)
                age = (datetime.now(UTC) - blob.updated).total_seconds()
                if other.get("tag") != tag and age < LEASE:
                    if not said:
                        who = other.get("holder", "another process")
                        print(f"{who} writes {self.uri}; waiting for it.", file=sys.stderr, flush=True)
                        said = True
                    time.sleep(min(5.0, max(0.2, LEASE / 20)))
                    continue
            data = json.dumps({"tag": tag, "holder": holder}).encode()
            try:
                self._claimed = (tag, self._send(_CLAIM, data, digests.crc32c(data), {}, before))
                return
            except api.PreconditionFailed:
                continue

    def _claimant(self, blob: gcs.Blob) -> dict[str, str]:
        try:
            return dict(json.loads(self._range(blob, 0, blob.size)))
        except (ValueError, FileNotFoundError):
            return {}

    def _beat(self, tag: str, holder: str, stop: threading.Event) -> None:
        data = json.dumps({"tag": tag, "holder": holder}).encode()
        while self._claimed is not None and not stop.wait(LEASE / 4):
            try:
                try:
                    self._claimed = (
                        tag,
                        self._send(_CLAIM, data, digests.crc32c(data), {}, self._claimed[1]),
                    )
                except api.PreconditionFailed:
                    blob = self._get(_CLAIM)
                    twin = blob is not None and self._claimant(blob).get("tag") == tag
                    self._claimed = (tag, blob.generation) if blob is not None and twin else None
            except (StorageError, UserError, DataCorruption):
                continue  # the lease outlives a bad minute

    def _still_ours(self) -> None:
        """Raises LostClaimError when another tag holds the claim, or nobody."""
        if self._expected is None:
            return
        blob = self._get(_CLAIM)
        if self._claimed is None or blob is None or self._claimant(blob).get("tag") != self._claimed[0]:
            raise LostClaimError(f"{self.uri}: another writer took over; this one stops")

    def _release(self) -> None:
        if self._claimed is None:
            return
        generation = self._claimed[1]
        self._claimed = None
        blob = self._bucket.blob(self._prefix + _CLAIM)
        with contextlib.suppress(api.GoogleAPIError, InvalidResponse, OSError):
            blob.delete(if_generation_match=generation, timeout=TIMEOUT, retry=self._retry)

    # Requests

    def _how(self) -> dict[str, Any]:
        return {"timeout": TIMEOUT, "retry": self._retry}

    def _list(self, below: str = "") -> dict[str, gcs.Blob]:
        prefix = self._prefix + (f"{below.strip('/')}/" if below.strip("/") else "")

        def once() -> list[gcs.Blob]:
            return list(self._client.list_blobs(self._bucket, prefix=prefix, **self._how()))

        found = {}
        for blob in self._call("storage.objects.list", once):
            name = blob.name.removeprefix(self._prefix)
            if not name.endswith("/") and name.split("/")[0] != STATE:
                found[name] = blob
        return dict(sorted(found.items()))

    def _get(self, name: str) -> gcs.Blob | None:
        return self._call(
            "storage.objects.get",
            lambda: self._bucket.get_blob(self._prefix + name, **self._how()),
            name=name,
        )

    def _corrupt(self, name: str) -> StorageError:
        return StorageError(f"{self.uri}/{name}: arrived damaged {_TRIES} times (crc32c does not match)")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
