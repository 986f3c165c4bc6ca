"""hf://: repositories of the Hugging Face hub, pinned to a commit.

The token comes from HF_TOKEN, the cache is the hub client's own (HF_HOME), HF_HUB_OFFLINE=1 reads
from it alone, HF_ENDPOINT names a mirror.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx
from huggingface_hub import HfApi, HfFileSystem, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.contract.uris import Uri
from tunewright_workloads.storage import digests, files
from tunewright_workloads.storage.faults import StorageError
from tunewright_workloads.storage.store import Entry, Finished

TRIES = 6
T = TypeVar("T")
IGNORED = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "*.onnx", "original/*", "onnx/*"]
"""What `localize` leaves at the hub: weights in formats that nothing here reads."""


def snapshot(uri: Uri, revision: str | None, place: str) -> Path:
    """The repository, or the file or directory of it that the URI names, in the hub client's cache."""
    store = HubStore(uri, revision, place)
    below = uri.path
    top = store.patiently(
        lambda: Path(
            snapshot_download(
                uri.root,
                # By its name, not by its commit: the cache then knows the name when it is offline.
                revision=store.revision,
                local_files_only=store.offline is not None,
                **_patterns(below),
            )
        )
    )
    path = top / below if below else top
    if not path.exists():
        raise UserError(Fault(place, "there is no such file in the repository", show(str(uri))))
    return path


class HubStore:
    """One commit of a repository, or a directory of it. Read only.

    commit: what `revision` (a branch, a tag or a commit; default `main`) stood for when it was asked.
    offline: the cached snapshot where the hub must not be asked.
    """

    def __init__(self, uri: Uri, revision: str | None = None, place: str = "uri") -> None:
        self.uri, self.place, self.revision = uri, place, revision or "main"
        self._below = f"{uri.path}/" if uri.path else ""
        self._info: list[Any] = []
        self.offline: Path | None = None
        if constants.is_offline_mode():
            with self.said():
                wanted = _patterns(uri.path)
                self.offline = Path(
                    snapshot_download(uri.root, revision=self.revision, local_files_only=True, **wanted)
                )
            self.commit = self.offline.name
        else:
            info = self.patiently(
                lambda: HfApi().model_info(uri.root, revision=self.revision, files_metadata=True)
            )
            if info.sha is None:
                raise StorageError(f"{uri}: the hub names no commit")
            self.commit, self._info = info.sha, info.siblings or []

    def entries(self, below: str = "") -> list[Entry]:
        if self.offline is not None:
            paths = [p for p in self.offline.rglob("*") if p.is_file()]
            found = [(p.relative_to(self.offline).as_posix(), p.stat().st_size) for p in paths]
        else:
            found = [(s.rfilename, s.size or 0) for s in self._info]
        top = self._below + (f"{below.strip('/')}/" if below else "")
        return sorted(
            (Entry(n.removeprefix(self._below), size, self.commit) for n, size in found if n.startswith(top)),
            key=lambda e: e.name,
        )

    def exists(self, name: str) -> bool:
        return any(e.name == name for e in self.entries())

    def get(self, name: str) -> bytes:
        return self._cached(name).read_bytes()

    def read(self, name: str, offset: int, size: int) -> bytes:
        if self.offline is not None:
            with (self.offline / self._below / name).open("rb") as file:
                file.seek(offset)
                return file.read(size)
        path = f"{self.uri.root}/{self._below}{name}"
        return self.patiently(
            lambda: bytes(
                HfFileSystem().cat_file(path, revision=self.commit, start=offset, end=offset + size)
            )
        )

    def fetch(self, entry: Entry, target: Path) -> None:
        """Through the client's resumable download; a file in its cache is linked, not fetched again.

        Checked by sha256 where the hub names one (every file in large-file storage).
        """
        if target.is_file() and target.stat().st_size == entry.size and _read_version(target) == self.commit:
            return
        cached = self._cached(entry.name).resolve()
        wanted = self.digest(entry.name)
        if wanted is not None and f"sha256:{digests.sha256(cached)}" != wanted:
            cached.unlink()
            raise StorageError(f"{self.uri}/{entry.name}: arrived damaged (sha256 does not match)")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(cached)
        except OSError:
            files.copy(cached, target)
        _version(target).write_text(self.commit)

    def digest(self, name: str) -> str | None:
        found = next((s for s in self._info if s.rfilename == self._below + name), None)
        sha256 = getattr(getattr(found, "lfs", None), "sha256", None)
        return f"sha256:{sha256}" if sha256 else None

    def _cached(self, name: str) -> Path:
        if not self.exists(name):
            raise FileNotFoundError(f"{self.uri}/{name}")
        return self.patiently(
            lambda: Path(
                hf_hub_download(
                    self.uri.root,
                    self._below + name,
                    revision=self.commit,
                    local_files_only=self.offline is not None,
                )
            )
        )

    def patiently(self, work: Callable[[], T]) -> T:
        """Does it again after what passes by itself, with growing pauses. Raises as `said` does."""
        for attempt in range(TRIES):
            try:
                with self.said():
                    return work()
            except StorageError:
                if attempt + 1 == TRIES:
                    raise
                time.sleep(2.0**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("TRIES is at least 1")

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """The client's errors as ours."""
        repository = self.uri.root
        try:
            yield
        except GatedRepoError:
            fix = f"Accept its terms at {constants.ENDPOINT}/{repository} with the account of the token."
            raise UserError(
                Fault(self.place, self._who("has no access to this gated repository"), show(repository), fix)
            ) from None
        except RevisionNotFoundError:
            raise UserError(
                Fault(self.place, "the repository has no such revision", show(self.revision))
            ) from None
        except RepositoryNotFoundError:
            fix = "Check the name; for a private repository set HF_TOKEN (tokenSecretRef) to a token that may read it."
            raise UserError(
                Fault(self.place, self._who("finds no such repository"), show(repository), fix)
            ) from None
        except (LocalEntryNotFoundError, OfflineModeIsEnabled):
            if constants.is_offline_mode():
                rule = "is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it"
                raise UserError(Fault(self.place, rule, show(f"{self.uri}@{self.revision}"))) from None
            raise StorageError(
                f"{self.uri}: the hub cannot be reached and the cache does not have it"
            ) from None
        except HfHubHTTPError as error:
            code = error.response.status_code if error.response is not None else None
            if code in (401, 403):
                raise UserError(
                    Fault(self.place, self._who("is refused by the hub"), show(repository), "Check HF_TOKEN.")
                ) from None
            raise StorageError(f"{self.uri}: the hub answers {code}: {str(error)[:200]}") from None
        except UserError:
            raise
        except (OSError, httpx.HTTPError) as error:
            raise StorageError(f"{self.uri}: {type(error).__name__}: {str(error)[:200]}") from None

    def _who(self, what: str) -> str:
        return (
            f"{'the token in HF_TOKEN' if os.environ.get('HF_TOKEN') else 'a client without a token'} {what}"
        )

    # What a repository is not for

    def _refuse(self) -> NoReturn:
        fix = "Write to gs:// or file:// and upload from there."
        raise UserError(Fault(self.place, "hf:// can only be read", show(str(self.uri)), fix))

    def put(
        self,
        name: str,
        source: Path | bytes,
        *,
        tag: str = "",
        digest: FileDigest | None = None,
        note: str = "",
    ) -> None:
        self._refuse()

    def publish(self, name: str, data: bytes) -> None:
        self._refuse()

    def finished(self, tag: str) -> dict[str, Finished]:
        self._refuse()

    def ours(self, name: str) -> bool:
        self._refuse()

    def adopt(self, names: Mapping[str, FileDigest]) -> None:
        self._refuse()

    def remove(self, name: str) -> None:
        self._refuse()

    def claim(self, tag: str, holder: str) -> AbstractContextManager[None]:
        self._refuse()

    def staging(self, work: Path) -> Path:
        self._refuse()


def _patterns(below: str) -> dict[str, Any]:
    """Which files of a repository are meant by a URI with the path `below`."""
    return {"allow_patterns": [below, f"{below}/*"]} if below else {"ignore_patterns": IGNORED}


def _version(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched")


def _read_version(target: Path) -> str:
    try:
        return _version(target).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
