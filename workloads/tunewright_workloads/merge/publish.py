"""base + adapter -> a published model: plan, stream, put, and the manifest last.

Each finished shard is put under a tag that stands for everything its bytes depend on; the next run
with the same tag finds those whose digest still holds and goes on with the rest. A directory
without a manifest is an unfinished merge.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import socket
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from tunewright_workloads import storage
from tunewright_workloads.contract import lineage
from tunewright_workloads.contract.configs import MergeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import MANIFEST, FileDigest, Manifest, Probe
from tunewright_workloads.contract.progress import Progress, ProgressFile
from tunewright_workloads.gemma import architecture, names
from tunewright_workloads.merge import card, checkpoint, layout, peft, probe
from tunewright_workloads.merge.adapter import Adapter, Change
from tunewright_workloads.merge.base import Base
from tunewright_workloads.merge.layout import Layout, Shard
from tunewright_workloads.merge.stream import Streamer, Written
from tunewright_workloads.storage import digests
from tunewright_workloads.storage.store import Store

_FORMAT = 2
"""Raised when the same inputs would give other bytes; part of the tag."""


@dataclass(frozen=True)
class Inputs:
    """Everything that was read before the first byte is written."""

    base: Base
    adapter: Adapter
    layout: Layout
    fingerprint: str
    small: Path


def read(config: MergeConfig) -> Inputs:
    """Reads headers, adapter and configuration, and plans the output.

    Raises UserError with what does not fit; nothing has been written then.
    """
    work = Path(config.work)
    work.mkdir(parents=True, exist_ok=True)
    base = Base(config.model.source, work, config.model.revision)
    small = base.small(work / "small")
    fingerprint = base.fingerprint()
    adapter = load_adapter(config, base, small, work)
    if adapter.base and adapter.base != fingerprint:
        raise UserError(
            Fault(
                "adapter",
                "was trained on another base than the one to merge into",
                f"fingerprint {adapter.base[:12]}…, the base has {fingerprint[:12]}…",
                "Give the base, and the revision, that the training used.",
            )
        )
    plan = layout.plan(
        base.headers, adapter, dtype=config.dtype, max_shard_size=config.max_shard_size, index=base.index
    )
    return Inputs(base, adapter, plan, fingerprint, small)


def load_adapter(config: MergeConfig, base: Base, small: Path, work: Path) -> Adapter:
    """The adapter at the configuration's URI: PEFT's format, or a training output of ours."""
    store = storage.store(config.adapter, place="adapter")
    shapes = base.shapes()
    if peft.present(store):
        if config.step is not None:
            raise UserError(Fault("step", "a PEFT adapter has no steps", show(config.step), "Leave it out."))
        return peft.load(store, work, shapes)
    step = checkpoint.choose(store, config.step)
    directory = checkpoint.fetch(store, step, work)
    with _told_as(small, config.model.source):
        arch = architecture.read(small)
    prefix = names.check(arch, shapes, config.model.source)
    with _told_as(directory, f"{config.adapter.rstrip('/')}/{checkpoint.CHECKPOINTS}/{step}"):
        adapter = checkpoint.load(directory, arch, config.adapter, step)

    def full(change: Change) -> Change:
        return replace(change, weight=prefix + change.weight)

    return replace(adapter, changes={c.weight: c for c in map(full, adapter.changes.values())})


_TOLD = 400
"""characters of a library's words that are shown"""


@contextlib.contextmanager
def _told_as(copy: Path, uri: str) -> Iterator[None]:
    """A fault in a file that was copied here is told with the name that the user knows."""

    def named(text: str) -> str:
        told = text
        for path in (str(copy.resolve()), str(copy)):
            told = told if uri.endswith(path) else told.replace(f"file://{path}", path).replace(path, uri)
        return told if len(told) <= _TOLD else f"{told[:_TOLD]}…"

    try:
        yield
    except UserError as error:
        faults = [
            replace(f, place=named(f.place), rule=named(f.rule), value=f.value and named(f.value))
            for f in error.faults
        ]
        raise UserError(faults, error.title and named(error.title)) from None


def merge(config: MergeConfig, *, probes: bool = False) -> Manifest:
    """Merges and publishes; returns the manifest that was written, or that was there already.

    probes: run the finished model beside base + adapter before it is published, where it fits in
    memory, and record what it says (see `probe`).

    Raises UserError for what cannot be merged or written.
    """
    _apart(config)
    progress = _Reporter(config.progress)
    progress.say("reading headers and adapter")
    inputs = read(config)
    store = storage.store(config.output, place="output")
    tag = _tag(config, inputs)
    holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with store.claim(tag, holder):
        old = _published(store)
        done = old is not None and _same(old, tag) and _complete(store, old, tag)
        if config.adapter_output and not (done and _exported(config.adapter_output)):
            progress.say("writing the adapter in PEFT's format")
            _export(config, inputs, config.adapter_output)
        if old is not None and done:
            progress.finish(inputs.layout.tensors, _digests(store, old))
            return old
        _clear(store, old)
        manifest = _publish(config, inputs, store, tag, progress, probes)
        published = _digests(store, manifest)
    progress.finish(inputs.layout.tensors, published)
    return manifest


def _digests(store: Store, manifest: Manifest) -> dict[str, str]:
    """What the operator shows of a published model: the digest of its manifest, and what it is made of."""
    found = {
        "merged": hashlib.sha256(store.get(MANIFEST)).hexdigest(),
        "base": manifest.base.digest,
        "adapter": manifest.adapter.digest,
        "dataset": manifest.dataset_digest,
        "revision": manifest.base.revision,
    }
    return {name: digest for name, digest in found.items() if digest}


def _exported(uri: str) -> bool:
    return peft.present(storage.store(uri, place="adapterOutput"))


def _apart(config: MergeConfig) -> None:
    """Refuses an output that lies where an input lies, before anything is read."""
    ours = config.output.rstrip("/")
    for place, theirs in (("model.source", config.model.source), ("adapter", config.adapter)):
        theirs = theirs.rstrip("/")
        if ours == theirs or theirs.startswith(ours + "/"):
            rule = f"would overwrite {place}, {theirs}"
            raise UserError(Fault("output", rule, show(config.output), "Choose a directory of its own."))


def _tag(config: MergeConfig, inputs: Inputs) -> str:
    """Stands for everything that the output's bytes depend on."""
    parts = [
        _FORMAT, inputs.fingerprint, inputs.base.version(), inputs.adapter.digest,
        sorted((c.weight, c.scale, c.rank) for c in inputs.adapter.changes.values()),
        config.dtype, config.max_shard_size, metadata.version("numpy"),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _published(store: Store) -> Manifest | None:
    if not store.exists(MANIFEST):
        return None
    try:
        return Manifest.model_validate_json(store.get(MANIFEST))
    except ValueError:
        place = f"{store.uri}/{MANIFEST}"
        raise UserError(
            Fault(place, "is there and is no manifest of ours", None, "Choose another output or remove it.")
        ) from None


def _same(manifest: Manifest, tag: str) -> bool:
    return manifest.versions.get("tag") == tag


def _complete(store: Store, manifest: Manifest, tag: str) -> bool:
    """Whether every file is what the manifest says. A bucket knows its objects' digests; a disk is read."""
    if store.uri.scheme == "file":
        root = Path(store.uri.path)
        return all(_is(root / name, file) for name, file in manifest.files.items())
    there = store.finished(tag)
    return all(name in there and there[name].digest == file for name, file in manifest.files.items())


def _is(path: Path, file: FileDigest) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return digests.sha256(path) == file.sha256


def _clear(store: Store, old: Manifest | None) -> None:
    """Makes an older model at the output invalid, then removes what it alone consists of.

    Raises UserError when files lie there that no merge of ours has written.
    """
    ours = set(old.files) if old else set()
    strangers = [
        e.name
        for e in store.entries()
        if e.name not in ours and e.name != MANIFEST and not store.ours(e.name)
    ]
    if strangers:
        listed = ", ".join(strangers[:3]) + ("" if len(strangers) <= 3 else f" and {len(strangers) - 3} more")
        raise UserError(
            Fault(
                "output",
                f"holds files that no merge of ours has written: {listed}",
                show(str(store.uri)),
                "Choose an empty place, or remove them.",
            )
        )
    if old is not None:
        store.adopt(old.files)
        store.remove(MANIFEST)


def _publish(
    config: MergeConfig,
    inputs: Inputs,
    store: Store,
    tag: str,
    progress: _Reporter,
    probing: bool,
) -> Manifest:
    finished = dict(store.finished(tag))
    files: dict[str, FileDigest] = {}
    weights = _shards(config, inputs, store, tag, progress, finished, files)
    base = lineage.Base(
        source=inputs.base.source,
        revision=inputs.base.commit,
        digest=hashlib.sha256(json.dumps(sorted(weights.items())).encode()).hexdigest(),
    )
    adapter = lineage.Adapter(
        source=inputs.adapter.source, step=inputs.adapter.step, digest=inputs.adapter.digest,
        rank=inputs.adapter.rank, alpha=inputs.adapter.alpha, modules=inputs.adapter.modules,
    )  # fmt: skip
    dataset = config.dataset_digest or inputs.adapter.dataset
    staging = store.staging(Path(config.work))
    texts = {card.CARD: card.text(base, adapter, config.dtype, dataset).encode()}
    if inputs.layout.index is not None:
        texts[layout.INDEX] = inputs.layout.index
    for entry in inputs.base.others():
        path = staging / f"other-{uuid.uuid4().hex}"
        inputs.base.store.fetch(entry, path)
        files[entry.name] = _put(store, entry.name, path, tag, finished)
    for name, data in texts.items():
        files[name] = _put(store, name, data, tag, finished)
    for stale in {e.name for e in store.entries()} - files.keys() - {MANIFEST}:
        store.remove(stale)
    probes = _probed(config, inputs, files, progress) if probing else []
    manifest = Manifest(
        base=base, adapter=adapter, dtype=config.dtype, dataset_digest=dataset,
        files=dict(sorted(files.items())), probes=probes, versions={**_versions(), "tag": tag},
    )  # fmt: skip
    store.publish(MANIFEST, (manifest.model_dump_json(by_alias=True, indent=2) + "\n").encode())
    return manifest


def _probed(
    config: MergeConfig, inputs: Inputs, files: dict[str, FileDigest], progress: _Reporter
) -> list[Probe]:
    """What the finished model says. Raises RuntimeError when it is not base + adapter."""
    reason = probe.fits(sum(d.size for name, d in files.items() if name.endswith(".safetensors")))
    if reason is None:
        progress.say("running the finished model")
        work, adapter = Path(config.work), inputs.adapter.directory
        merged = storage.localize(config.output, work, place="output")
        base = None
        if adapter is not None:
            source = inputs.base
            base = storage.localize(source.source, work, revision=source.commit, place="model.source")
        result = probe.run(merged, base, adapter)
        if result is not None:
            if result.difference is not None:
                dtypes = [p.dtype for s in inputs.layout.shards for p in s.pieces if p.change]
                narrowest = max(dtypes, key=list(probe.TOLERANCES).index)
                if fault := result.difference.fault(narrowest):
                    raise RuntimeError(fault)
                progress.say(f"log-probabilities differ from base + adapter by {result.difference.mean:.2g}")
            return result.probes
        reason = "the process that ran it was killed"
    progress.say(f"{reason}: reading the finished model layer by layer instead")
    width = 2 if config.dtype in ("bfloat16", "float16") else 4
    reason = probe.streams(architecture.read(inputs.small), width)
    if reason is None:
        result = probe.stream(config.output, inputs.small)
        if result is not None:
            return result.probes
        reason = "the process that read it was killed"
    progress.say(f"no probes are recorded: {reason}")
    return []


def _put(
    store: Store, name: str, source: Path | bytes, tag: str, finished: dict[str, storage.Finished]
) -> FileDigest:
    if isinstance(source, bytes):
        digest = FileDigest(size=len(source), sha256=hashlib.sha256(source).hexdigest())
    else:
        digest = FileDigest(size=source.stat().st_size, sha256=digests.sha256(source))
    if name in finished and finished[name].digest == digest:
        if not isinstance(source, bytes):
            source.unlink()
    else:
        store.put(name, source, tag=tag, digest=digest)
    return digest


def _shards(
    config: MergeConfig,
    inputs: Inputs,
    store: Store,
    tag: str,
    progress: _Reporter,
    finished: dict[str, storage.Finished],
    files: dict[str, FileDigest],
) -> dict[str, str]:
    """Writes the shards that are not finished. Fills `files`; returns the base files' digests by name."""
    weights: dict[str, str] = {}
    todo: list[Shard] = []
    merged = 0
    for shard in inputs.layout.shards:
        before = finished.get(shard.name)
        if before is None or before.digest.size != shard.size:
            todo.append(shard)
            continue
        files[shard.name] = before.digest
        progress.done += len(shard.pieces)
        merged += sum(1 for p in shard.pieces if p.change)
        if shard.whole:
            weights[shard.whole] = before.note
    progress.total = inputs.layout.tensors
    progress.say(f"{len(inputs.layout.shards) - len(todo)} of {len(inputs.layout.shards)} shards were there")
    staging = store.staging(Path(config.work))
    _room(store, staging, todo)
    waiting: deque[Future[None]] = deque()
    wanted = [s.files for s in todo]
    relaid = any(s.whole is None for s in inputs.layout.shards)
    if relaid:  # a base file is not hashed on its way through a shard: fetch those that no shard needs now
        needed = {name for names in wanted for name in names}
        wanted += [[h.file] for h in inputs.base.headers if h.file not in needed]
    uploads = 1 if inputs.base.local and store.uri.scheme == "file" else 2
    with Streamer() as streamer, ThreadPoolExecutor(uploads, "put") as putter:
        with inputs.base.files(wanted, relaid) as ready:
            for shard, paths in zip(todo, ready, strict=False):
                target = staging / f"{uuid.uuid4().hex}.safetensors"
                written = streamer.write(shard, paths, target, progress.tensor)
                if shard.whole and written.base:
                    weights[shard.whole] = note = inputs.base.known(shard.whole) or written.base
                else:
                    note = ""
                merged += sum(1 for p in shard.pieces if p.change)
                files[shard.name] = written.digest
                if len(waiting) >= uploads:
                    waiting.popleft().result()
                waiting.append(putter.submit(_settle, store, shard.name, target, tag, written, note))
            for _ in ready:
                pass  # fetched for their digests alone
        while waiting:
            waiting.popleft().result()
    if relaid:
        weights = {h.file: inputs.base.digest(h.file) for h in inputs.base.headers}
    if merged != len(inputs.adapter.changes):
        raise RuntimeError(f"{len(inputs.adapter.changes)} weights were to be changed, {merged} were")
    return weights


def _settle(store: Store, name: str, path: Path, tag: str, written: Written, note: str) -> None:
    """Beside the next shard: the disk's part of this one, then its name."""
    written.settle()
    store.put(name, path, tag=tag, digest=written.digest, note=note)


def _room(store: Store, staging: Path, todo: list[Shard]) -> None:
    """Raises StorageError when what is to be written does not fit on the disk."""
    sizes = sorted((s.size for s in todo), reverse=True)
    # A bucket's shards are removed once they are uploaded; two uploads and one merge are under way.
    need = sum(sizes if store.uri.scheme == "file" else sizes[:4])
    free = shutil.disk_usage(staging).free
    if need > free:
        told = f"{need / 1e6:.0f} MB are to be written and {free / 1e6:.0f} MB are free"
        raise storage.StorageError(f"{staging}: {os.strerror(errno.ENOSPC)}: {told}")


def _versions() -> dict[str, str]:
    packages = ("tunewright", "numpy", "ml-dtypes", "tensorstore", "safetensors")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class _Reporter:
    """Progress of a merge in tensors, on the progress file and, where somebody looks, on stderr."""

    def __init__(self, path: str | None) -> None:
        self._file = ProgressFile(path)
        self.done, self.total = 0, 0
        self._start: tuple[datetime, int] | None = None

    def say(self, message: str) -> None:
        print(f"merge: {message}", file=sys.stderr, flush=True)
        self._file.write(Progress(stage="merge", message=message, step=self.done, total_steps=self.total))

    def tensor(self, piece: layout.Piece) -> None:
        now = datetime.now(UTC)
        self._start = self._start or (now, self.done)
        self.done += 1
        begun, before = self._start
        eta = None
        if self.done > before + 1:
            each = (now - begun).total_seconds() / (self.done - before)
            eta = now + timedelta(seconds=each * (self.total - self.done))
        self._file.write(
            Progress(
                stage="merge", message=piece.tensor.name, step=self.done, total_steps=self.total, eta=eta
            )
        )

    def finish(self, total: int, artifacts: dict[str, str]) -> None:
        self._file.write(
            Progress(
                stage="merge",
                message="published",
                step=total,
                total_steps=total,
                done=True,
                artifacts=artifacts,
            )
        )


def export(config: MergeConfig, output: str) -> None:
    """Writes the adapter of `config` in PEFT's format to the URI `output`."""
    _export(config, read(config), output)


def _export(config: MergeConfig, inputs: Inputs, output: str) -> None:
    work = Path(config.work) / f"export-{uuid.uuid4().hex[:8]}"
    store = storage.store(output, place="adapterOutput")
    base = config.model.source
    base = base.removeprefix("hf://") if base.startswith("hf://") else base
    try:
        for path in peft.write(inputs.adapter, inputs.base.shapes(), base, work):
            store.put(path.name, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
