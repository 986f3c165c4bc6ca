"""The base checkpoint: its headers first, its files one after the other, so that none has to be kept.

A base of file:// or sample:// is read where it is. One of gs:// or hf:// is fetched file by file,
the next one while the current one is merged, and each is removed when its shards are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from tunewright_workloads import storage
from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.merge import layout, tensors
from tunewright_workloads.storage import digests
from tunewright_workloads.storage.digests import Fingerprint
from tunewright_workloads.storage.store import Entry, Store

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz")
_NEVER = {"README.md", "adapter_config.json", "tunewright.json", layout.INDEX, "pytorch_model.bin.index.json"}


class Base:
    """A checkpoint in Hugging Face format at any URI that can be read."""

    def __init__(self, source: str, work: Path, revision: str | None = None, place: str = "model.source"):
        self.source, self.place = source, place
        parsed = uris.parse(source, place)
        self.local = parsed.scheme in ("file", "sample")
        if self.local:
            path = storage.localize(source, work, place=place)
            self.store: Store = storage.store(f"file://{path.resolve()}", place=place)
        else:
            self.store = storage.store(source, revision=revision, place=place)
        self.commit: str | None = getattr(self.store, "commit", None)
        cached: Path | None = getattr(self.store, "offline", None)
        if cached is not None:
            self.local, self.store = True, storage.store(f"file://{cached}/{parsed.path}", place=place)
        self._work = work / "base"
        self._digests: dict[str, str] = {}
        self.entries = {e.name: e for e in self.store.entries()}
        if not self.entries:
            raise UserError(Fault(place, "there is no checkpoint here", show(source)))
        self.index = self.store.get(layout.INDEX) if layout.INDEX in self.entries else None
        self.headers = [self._header(name) for name in self._names()]
        if self.index is not None:
            layout.indexed(self.index, self.headers)

    def _names(self) -> list[str]:
        if self.index is not None:
            try:
                names = sorted(set(json.loads(self.index)["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError):
                rule = "is no index: a JSON object with weight_map is needed"
                raise UserError(Fault(f"{self.source}/{layout.INDEX}", rule)) from None
            missing = [n for n in names if n not in self.entries]
            if missing:
                raise UserError(
                    [Fault(f"{self.source}/{n}", "is named by the index and is not there") for n in missing],
                    "The base is not complete",
                )
            return names
        if layout.SINGLE in self.entries:
            return [layout.SINGLE]
        rule = f"holds neither {layout.INDEX} nor {layout.SINGLE}"
        fix = "A checkpoint in Hugging Face format with safetensors is needed."
        raise UserError(Fault(self.place, rule, show(self.source), fix))

    def _header(self, name: str) -> tensors.Header:
        return tensors.read(name, self.entries[name].size, lambda at, size: self.store.read(name, at, size))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape."""
        return {t.name: t.shape for h in self.headers for t in h.tensors}

    def fingerprint(self) -> str:
        """See `storage.fingerprint`; here it is read through the store, in parallel."""
        with ThreadPoolExecutor(1 if self.local else 16) as pool:

            def read(item: tuple[str, int, int]) -> bytes:
                return self.store.read(*item)

            state = Fingerprint()
            for header in self.headers:
                size = self.entries[header.file].size
                state.add(header.file, size, header.raw[8:], lambda f, places: pool.map(
                    read, [(f, at, count) for at, count in places]
                ))  # fmt: skip
        return state.text()

    def version(self) -> str:
        """What changes when any weight file does, as far as the store can tell without reading it."""
        kept = [
            [n, self.entries[n].size, "" if self.local else self.entries[n].version] for n in self._names()
        ]
        return hashlib.sha256(json.dumps(kept).encode()).hexdigest()

    def others(self) -> list[Entry]:
        """The files that belong into the output as they are: configuration, tokenizer, templates.

        Weights in other formats stay behind (they would be the base's, not the merged model's), and so
        does the base's model card.
        """
        return [e for e in self.entries.values() if _kept(e.name)]

    def small(self, into: Path) -> Path:
        """The directory with the other files, for whoever reads config.json and the tokenizer."""
        if self.local:
            return Path(self.store.uri.path)
        for entry in self.others():
            self.store.fetch(entry, into / entry.name)
        return into

    @contextlib.contextmanager
    def files(self, wanted: list[list[str]], digest: bool) -> Iterator[Iterator[dict[str, Path]]]:
        """For each item of `wanted` (names of weight files), in order, where they are.

        A fetched file is removed once no later item needs it; the next item's are fetched ahead.
        digest: fetched files are read once more as they come, for `digest` to know.
        """
        if self.local:
            root = Path(self.store.uri.path)
            yield ({n: root / n for n in names} for names in wanted)
            return
        with ThreadPoolExecutor(1, "fetch") as pool:
            try:
                yield self._fetched(wanted, digest, pool)
            finally:
                pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._work, ignore_errors=True)

    def _fetched(
        self, wanted: list[list[str]], digest: bool, pool: ThreadPoolExecutor
    ) -> Iterator[dict[str, Path]]:
        def fetch(names: list[str]) -> dict[str, Path]:
            for name in names:
                self.store.fetch(self.entries[name], self._work / name)
                if digest and not self.known(name):
                    self._digests[name] = f"crc32c:{digests.crc32c(self._work / name)}"
            return {n: self._work / n for n in names}

        ahead: Future[dict[str, Path]] | None = pool.submit(fetch, wanted[0]) if wanted else None
        for i, names in enumerate(wanted):
            assert ahead is not None
            ready = ahead.result()
            if i + 1 < len(wanted):
                ahead = pool.submit(fetch, wanted[i + 1])
            yield ready
            later = {n for rest in wanted[i + 1 :] for n in rest}
            for name in names:
                if name not in later:
                    (self._work / name).unlink(missing_ok=True)

    def known(self, name: str) -> str | None:
        """Digest of a weight file, where it is known without reading the file."""
        if name not in self._digests and not self.local and (named := self.store.digest(name)):
            self._digests[name] = named
        return self._digests.get(name)

    def digest(self, name: str) -> str:
        """Digest of a weight file: as its store names it, else its crc32c."""
        if known := self.known(name):
            return known
        self._digests[name] = f"crc32c:{digests.crc32c(Path(self.store.uri.path) / name)}"
        return self._digests[name]


def _kept(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    weights = name.endswith(_WEIGHTS) or name.endswith((".safetensors.index.json", ".bin.index.json"))
    return not (hidden or weights or name in _NEVER or path.parts[0] in ("original", "onnx"))
