"""Checks a published model: its files against its manifest, its tensors against base and adapter.

    python -m tunewright_workloads.merge.verify URI [--base URI] [--adapter URI]

Always: every file's sha256, nothing beside them that an engine would load, index and headers agree,
every float is finite. With the base (by default the manifest's, where it can be reached): the same
key set, shapes and dtypes, unchanged tensors byte for byte, a sample of the changed ones recomputed,
configuration, tokenizer and templates byte for byte. Where the model fits in memory: its probes.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in the merge, whose bits are recomputed

import argparse
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from tunewright_workloads import storage
from tunewright_workloads.contract import exits, uris
from tunewright_workloads.contract.configs import MergeConfig, ModelSource
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import MANIFEST, Manifest
from tunewright_workloads.gemma import architecture
from tunewright_workloads.merge import layout, probe, publish, tensors
from tunewright_workloads.merge.stream import Files, Streamer
from tunewright_workloads.storage.store import Store

SAMPLE = 12
"""Changed tensors that are recomputed unless `--sample` says otherwise."""
_BLOCK = 8 << 20


@dataclass
class Findings:
    """What was checked (a line each) and what is wrong."""

    checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"  ok       {line}" for line in self.checked]
        lines += [f"  skipped  {line}" for line in self.skipped]
        lines += [f"  WRONG    {fault}" for fault in self.faults]
        return "\n".join(lines)


def verify(
    uri: str,
    work: Path,
    *,
    base: str | None = None,
    adapter: str | None = None,
    sample: int = SAMPLE,
    run: bool = True,
) -> Findings:
    """Checks the model at `uri`. Raises UserError when there is no finished model there.

    base, adapter: URIs; None: those of the manifest, and the check is skipped, with a word, where they
    cannot be reached. An explicit one that cannot be reached raises.
    """
    work.mkdir(parents=True, exist_ok=True)
    store = storage.store(uri, place="model")
    manifest = _manifest(store, uri)
    found = Findings()
    headers = _files(store, manifest, found)
    if found.faults:
        return found
    _finite(store, headers, found)
    read = _inputs(manifest, uri, work, base, adapter, found)
    if read is not None:
        _against(store, headers, read, manifest, found)
        _recomputed(store, headers, read, sample, work, found)
    if run:
        _probes(uri, manifest, work, found)
    return found


def _manifest(store: Store, uri: str) -> Manifest:
    try:
        return Manifest.model_validate_json(store.get(MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        fix = "Merge it first; a merge that was cut short goes on when it is run again."
        if store.exists(f"merged/{MANIFEST}"):
            fix = f"Did you mean {uri.rstrip('/')}/merged?"
        raise UserError(
            Fault("model", f"there is no {MANIFEST}: no merge has finished here", show(uri), fix)
        ) from None
    except ValidationError as error:
        raise UserError(
            Fault(f"{uri}/{MANIFEST}", f"is no manifest of ours: {error.errors()[0]['msg']}")
        ) from None


def _files(store: Store, manifest: Manifest, found: Findings) -> list[tensors.Header]:
    """Digests, strangers, headers and index."""
    entries = {e.name: e for e in store.entries()}
    for name, record in manifest.files.items():
        if name not in entries:
            found.faults.append(Fault(name, "is in the manifest and not there"))
        elif entries[name].size != record.size:
            found.faults.append(Fault(name, f"must have {record.size} bytes", str(entries[name].size)))
        elif _sha256(store, name, record.size) != record.sha256:
            found.faults.append(Fault(name, "does not have the sha256 of the manifest"))
    for name in entries:
        if (
            name not in manifest.files
            and name.endswith((".safetensors", ".bin", ".json"))
            and name != MANIFEST
        ):
            found.faults.append(
                Fault(name, "is not in the manifest, and an engine may load it", None, "Remove it.")
            )
    if found.faults:
        return []
    total = sum(f.size for f in manifest.files.values())
    found.checked.append(f"sha256 of {len(manifest.files)} files, {total / 1e9:.2f} GB")
    headers = []
    try:
        for name in sorted(manifest.files):
            if name.endswith(".safetensors"):
                headers.append(_header(store, name, entries[name].size))
        if layout.INDEX in manifest.files:
            layout.indexed(store.get(layout.INDEX), headers)
    except UserError as error:
        found.faults += error.faults
        return []
    found.checked.append(f"index and headers of {sum(len(h.tensors) for h in headers)} tensors")
    return headers


def _header(store: Store, name: str, size: int) -> tensors.Header:
    return tensors.read(name, size, lambda at, count: store.read(name, at, count))


def _blocks(store: Store, name: str, begin: int, end: int) -> Iterator[bytes]:
    for at in range(begin, end, _BLOCK):
        yield store.read(name, at, min(_BLOCK, end - at))


def _sha256(store: Store, name: str, size: int) -> str:
    state = hashlib.sha256()
    for block in _blocks(store, name, 0, size):
        state.update(block)
    return state.hexdigest()


def _finite(store: Store, headers: list[tensors.Header], found: Findings) -> None:
    count = 0
    for header in headers:
        for tensor in header.tensors:
            if tensor.dtype not in tensors.FLOATS:
                continue
            count += 1
            for block in _blocks(store, header.file, tensor.begin, tensor.end):
                values = np.frombuffer(block, tensors.FLOATS[tensor.dtype])
                if not np.isfinite(values.astype(np.float32, copy=False)).all():
                    found.faults.append(Fault(tensor.name, "holds NaN or infinity"))
                    break
    found.checked.append(f"finite values in {count} tensors")


def _inputs(
    manifest: Manifest, uri: str, work: Path, base: str | None, adapter: str | None, found: Findings
) -> publish.Inputs | None:
    """Base and adapter, planned as the merge planned them; None when they cannot be reached."""
    config = MergeConfig(
        job="verify",
        model=ModelSource(
            name="custom", source=base or manifest.base.source, revision=manifest.base.revision or "main"
        ),
        adapter=adapter or manifest.adapter.source,
        step=manifest.adapter.step,
        output=uri,
        dtype=manifest.dtype,
        work=str(work),
    )
    try:
        inputs = publish.read(config)
    except UserError as error:
        if base is not None or adapter is not None:
            raise
        found.skipped.append(f"comparison with base and adapter: {error.text()}")
        return None
    except storage.StorageError as error:
        found.skipped.append(f"comparison with base and adapter: {error}")
        return None
    if inputs.adapter.digest != manifest.adapter.digest:
        found.faults.append(
            Fault(
                "adapter",
                "is not the one that was merged",
                f"{config.adapter}, digest {inputs.adapter.digest[:12]}…, the manifest has {manifest.adapter.digest[:12]}…",
            )
        )
        return None
    return inputs


def _against(
    store: Store, headers: list[tensors.Header], read: publish.Inputs, manifest: Manifest, found: Findings
) -> None:
    """Key set, shapes, dtypes; unchanged tensors and files byte for byte."""
    got = {t.name: t for h in headers for t in h.tensors}
    want = {p.tensor.name: p for s in read.layout.shards for p in s.pieces}
    before = len(found.faults)
    for name in sorted(got.keys() - want.keys()):
        found.faults.append(Fault(name, "is not a tensor of the base"))
    for name in sorted(want.keys() - got.keys()):
        found.faults.append(Fault(name, "is missing"))
    for name in sorted(want.keys() & got.keys()):
        ours, theirs = got[name], want[name]
        if ours.shape != theirs.tensor.shape:
            found.faults.append(
                Fault(name, f"must have shape {list(theirs.tensor.shape)}", str(list(ours.shape)))
            )
        if ours.dtype != theirs.dtype:
            found.faults.append(Fault(name, f"must have dtype {theirs.dtype}", ours.dtype))
    if len(found.faults) > before:
        return
    found.checked.append(f"key set, shapes and dtypes of {len(want)} tensors against the base")
    same = [p for p in want.values() if p.change is None]
    for piece in same:
        here, there = got[piece.tensor.name], piece.tensor
        blocks = zip(
            _blocks(store, here.file, here.begin, here.end),
            _blocks(read.base.store, there.file, there.begin, there.end),
            strict=True,
        )
        if any(a != b for a, b in blocks):
            found.faults.append(Fault(piece.tensor.name, "was not to be changed and differs from the base"))
    for entry in read.base.others():
        if entry.name not in manifest.files:
            found.faults.append(Fault(entry.name, "is a file of the base and missing"))
        elif _sha256(read.base.store, entry.name, entry.size) != manifest.files[entry.name].sha256:
            found.faults.append(Fault(entry.name, "differs from the base's"))
    if len(found.faults) == before:
        count = len(read.base.others())
        found.checked.append(f"{len(same)} unchanged tensors and {count} files, byte for byte as in the base")


def _recomputed(
    store: Store,
    headers: list[tensors.Header],
    read: publish.Inputs,
    sample: int,
    work: Path,
    found: Findings,
) -> None:
    """Some changed tensors, merged again: the same arithmetic must give the same bits."""
    got = {t.name: t for h in headers for t in h.tensors}
    changed = [p for s in read.layout.shards for p in s.pieces if p.change]
    chosen = random.Random(0).sample(changed, min(sample, len(changed)))
    before = len(found.faults)
    with Streamer() as streamer:
        for piece in chosen:
            ours = got.get(piece.tensor.name)
            if ours is None or ours.size != piece.size:
                continue  # already a fault
            source = piece.tensor
            if read.base.local:
                path, begin = Path(read.base.store.uri.path) / source.file, source.begin
            else:
                path, begin = work / "tensor", 0
                with path.open("wb") as file:
                    for block in _blocks(read.base.store, source.file, source.begin, source.end):
                        file.write(block)
            moved = tensors.Tensor(
                source.name, source.dtype, source.shape, source.file, begin, begin + source.size
            )
            with Files({source.file: path}) as files:
                state = hashlib.sha256()
                for out in streamer.merged(files, layout.Piece(moved, piece.dtype, piece.change)):
                    state.update(out)
            theirs = hashlib.sha256()
            for block in _blocks(store, ours.file, ours.begin, ours.end):
                theirs.update(block)
            if state.digest() != theirs.digest():
                found.faults.append(Fault(piece.tensor.name, "is not base + adapter"))
    if len(found.faults) == before:
        found.checked.append(
            f"{len(chosen)} of {len(changed)} changed tensors recomputed, equal in every bit"
        )


def _probes(uri: str, manifest: Manifest, work: Path, found: Findings) -> None:
    """The model still says what the manifest recorded. Rounding may differ by machine: see TOLERANCES."""
    if not manifest.probes:
        found.skipped.append("probes: the manifest has none")
        return
    if all(len(p.tokens) == 1 for p in manifest.probes):  # recorded from a pass over the file
        small = _small(uri, manifest, work)
        if reason := probe.streams(architecture.read(small), 4):
            found.skipped.append(f"probes: {reason}")
            return
        result = probe.stream(uri, small)
    else:
        weights = sum(f.size for n, f in manifest.files.items() if n.endswith(".safetensors"))
        if reason := probe.fits(weights):
            found.skipped.append(f"probes: {reason}")
            return
        result = probe.run(storage.localize(uri, work, place="model"), None, None)
    if result is None:
        found.skipped.append("probes: the process that ran the model was killed")
        return
    worst = 0.0
    for ours, theirs in zip(result.probes, manifest.probes, strict=False):
        if ours.prompt_tokens != theirs.prompt_tokens:
            found.faults.append(Fault(show(theirs.prompt), "is tokenized in another way than recorded"))
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=False)) if a != b),
            len(theirs.tokens),
        )
        off = np.abs(np.subtract(ours.logprobs[:same], theirs.logprobs[:same]))
        worst = max(worst, float(off.max(initial=0.0)))
        near_tie = same < len(theirs.tokens) and abs(ours.logprobs[same] - theirs.logprobs[same]) < 0.01
        if (same < len(theirs.tokens) and not near_tie) or worst > 0.01:
            found.faults.append(
                Fault(show(theirs.prompt), f"greedy generation leaves the recorded path at token {same}")
            )
    if len(result.probes) != len(manifest.probes):
        found.faults.append(Fault("probes", f"{len(manifest.probes)} are recorded", str(len(result.probes))))
    if not found.faults:
        found.checked.append(f"{len(manifest.probes)} probes, log-probabilities within {worst:.1g}")


def _small(uri: str, manifest: Manifest, work: Path) -> Path:
    """The model's files without its weights, as local files."""
    store, target = storage.store(uri), work / "published"
    target.mkdir(parents=True, exist_ok=True)
    for name in manifest.files:
        if not name.endswith(".safetensors"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(store.get(name))
    return target


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser("tunewright verify", description="Checks a published model.")
    made.add_argument("model", metavar="URI", help="directory with tunewright.json")
    made.add_argument("--base", metavar="URI", help="default: the manifest's")
    made.add_argument("--adapter", metavar="URI", help="default: the manifest's")
    made.add_argument(
        "--sample", type=_count, default=SAMPLE, help="changed tensors to recompute (default: %(default)s)"
    )
    made.add_argument(
        "--no-run", action="store_true", help="do not run the model, even where it fits in memory"
    )
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = made.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tunewright-verify-") as scratch:
        try:
            found = verify(
                uris.local(options.model),
                Path(scratch),
                base=uris.local(options.base) if options.base else None,
                adapter=uris.local(options.adapter) if options.adapter else None,
                sample=options.sample,
                run=not options.no_run,
            )
        except UserError as error:
            print(error.text(), file=sys.stderr)
            return exits.BAD_INPUT
        except OSError as error:  # a StorageError, a file that may not be read
            print(error, file=sys.stderr)
            return exits.RETRY
    if options.json:
        data: dict[str, Any] = {
            "passed": not found.faults, "checked": found.checked, "skipped": found.skipped,
            "faults": [{"place": f.place, "rule": f.rule, "value": f.value} for f in found.faults],
        }  # fmt: skip
        print(json.dumps(data))
    else:
        print(found.text())
        print("verified" if not found.faults else f"{len(found.faults)} things are wrong")
    return exits.BAD_INPUT if found.faults else exits.DONE


if __name__ == "__main__":
    sys.exit(main())
