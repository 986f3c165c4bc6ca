"""One output shard as a pipeline read -> merge -> write, several blocks in flight, memory bounded.

A block is at most `BLOCK` bytes of one tensor (whole rows where it is merged), so memory does not
depend on the size of a tensor, let alone of the model: `depth` blocks and their f32 copies.

Rounding: W is widened to f32 (exact from bf16 and f16), scale * (b @ a) is computed and added in
f32, and the sum is rounded once, to nearest even, to the output's dtype. f64 weights are added in
f64. The cut into blocks depends on the shape alone, so that a resumed run has the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.merge.adapter import Pair
from tunewright_workloads.merge.layout import Piece, Shard
from tunewright_workloads.merge.sink import Sink
from tunewright_workloads.merge.tensors import FLOATS, WIDTHS
from tunewright_workloads.storage import digests

BLOCK = 1 << 20
"""bytes of the base read at once: read, summed, hashed and copied while it is in a core's cache"""

_LIMITS = {
    "F16": 65520.0, "BF16": (2 - 2**-8) * 2.0**127, "F32": float("inf"), "F64": float("inf"),
}  # fmt: skip
"""What rounds to infinity: half a unit in the last place above the largest number."""

_ROWS = 64
"""rows of a block that are summed at a time; part of what the bits depend on"""


_LAG = 8
"""blocks that the digest may be behind"""


@dataclass(frozen=True)
class Written:
    """A shard that was handed to the system, and the crc32c of the base file that it was made from (None: of several).

    settle: waits until the shard is on the disk, and raises what a write ended in. To be called once,
    before the shard gets its name; the next shard may be written meanwhile.
    """

    digest: FileDigest
    base: str | None
    settle: Callable[[], None]


@dataclass(frozen=True)
class _Block:
    piece: Piece
    start: int
    stop: int
    """rows of a merged tensor, bytes of a copied one"""


class Files:
    """Open base files by path, shared by threads through pread."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._numbers = {name: os.open(path, os.O_RDONLY) for name, path in paths.items()}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers.values():
            os.close(number)

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises UserError when the file has become shorter."""
        data = os.pread(self._numbers[file], size, offset)
        while len(data) < size:
            more = os.pread(self._numbers[file], size - len(data), offset + len(data))
            if not more:
                raise UserError(
                    Fault(file, "became shorter while it was read", None, "Fetch the base again.")
                )
            data += more
        return data


class _Pairs:
    """The factors of the tensors in flight: read once, dropped after the tensor's last block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Pair, int]] = {}
        self._busy: dict[str, threading.Lock] = {}

    def use(self, piece: Piece, blocks: int, work: Callable[[Pair], Any]) -> Any:
        """Calls `work` with the piece's pair; the `blocks`-th call lets go of it."""
        name = piece.tensor.name
        with self._lock:
            busy = self._busy.setdefault(name, threading.Lock())
        with busy:
            if name not in self._held:
                assert piece.change is not None
                self._held[name] = (piece.change.load(), blocks)
            pair, left = self._held[name]
            if left == 1:
                del self._held[name], self._busy[name]
            else:
                self._held[name] = (pair, left - 1)
        return work(pair)


class Streamer:
    """Writes shards. One pool of threads for a whole merge; `workers` blocks are computed at a time."""

    def __init__(self, workers: int = 2, block: int = BLOCK) -> None:
        self.block, self._depth = block, workers + 6
        self._pool = ThreadPoolExecutor(workers, "merge")
        self._order = ThreadPoolExecutor(1, "digest")

    def __enter__(self) -> Streamer:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._pool, self._order):
            pool.shutdown(cancel_futures=True)

    def write(
        self, shard: Shard, base: dict[str, Path], target: Path, done: Callable[[Piece], None]
    ) -> Written:
        """Writes `shard` to `target`, on the disk once the result's `settle` has been called.

        base: local path of every base file of `shard.files`. done: called after each tensor.
        Raises UserError when a sum is not finite, or a base file is damaged.
        """
        ours, theirs = hashlib.sha256(), 0
        sink, pairs = Sink(target, shard.size), _Pairs()
        hashing: deque[Future[None]] = deque()
        try:
            with Files(base) as files:
                if shard.whole:
                    theirs = google_crc32c.value(self._head(files, shard))
                ours.update(shard.header)
                sink.write(shard.header)
                for block, future in self._ahead(files, shard, pairs):
                    raw, out = future.result()
                    # In order, beside this thread: hashing takes longer than everything else.
                    hashing.append(self._order.submit(ours.update, out))
                    sink.write(out)
                    if shard.whole:
                        theirs = google_crc32c.extend(theirs, raw)
                    if len(hashing) > _LAG:
                        hashing.popleft().result()
                    if block.stop == _extent(block.piece):
                        done(block.piece)
            while hashing:
                hashing.popleft().result()
            if sink.size != shard.size:
                raise RuntimeError(f"{shard.name}: {sink.size} bytes were written, {shard.size} were planned")
        except BaseException:
            sink.abandon()
            raise
        digest = FileDigest(size=shard.size, sha256=ours.hexdigest())
        return Written(digest, f"crc32c:{digests.crc32c_text(theirs)}" if shard.whole else None, sink.close)

    def merged(self, files: Files, piece: Piece) -> Iterator[Any]:
        """The bytes of one changed tensor, block by block, as `write` writes them."""
        pairs = _Pairs()
        for block in self._blocks(Shard("", b"", (piece,))):
            yield self._work(files, block, pairs)[1]

    def _head(self, files: Files, shard: Shard) -> bytes:
        first = min((p.tensor.begin for p in shard.pieces), default=None)
        if first is None:
            return shard.header  # a file without tensors is its header
        return files.read(shard.whole or "", 0, first)

    def _ahead(
        self, files: Files, shard: Shard, pairs: _Pairs
    ) -> Iterator[tuple[_Block, Future[tuple[Any, Any]]]]:
        """Blocks in order, each with its result; `depth` of them are in flight."""
        waiting: deque[tuple[_Block, Future[tuple[Any, Any]]]] = deque()
        try:
            for block in self._blocks(shard):
                waiting.append((block, self._pool.submit(self._work, files, block, pairs)))
                if len(waiting) >= self._depth:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for _, future in waiting:
                if not future.cancel():
                    future.exception()

    def _rows(self, piece: Piece) -> int:
        inputs = piece.tensor.shape[1]
        rows = self.block // max(1, inputs * WIDTHS[piece.tensor.dtype])
        return max(_ROWS, rows - rows % _ROWS)  # whole sums: the bits do not depend on `block`

    def _blocks(self, shard: Shard) -> Iterator[_Block]:
        for piece in shard.pieces:
            step = self._rows(piece) if piece.change else self.block
            extent = _extent(piece)
            for start in range(0, extent, step):
                yield _Block(piece, start, min(extent, start + step))

    def _work(self, files: Files, block: _Block, pairs: _Pairs) -> tuple[Any, Any]:
        """(the base's bytes, the output's bytes) of one block."""
        tensor = block.piece.tensor
        if block.piece.change is None:
            raw = files.read(tensor.file, tensor.begin + block.start, block.stop - block.start)
            return raw, raw
        row = tensor.shape[1] * WIDTHS[tensor.dtype]
        raw = files.read(tensor.file, tensor.begin + block.start * row, (block.stop - block.start) * row)
        blocks = -(-tensor.shape[0] // self._rows(block.piece))
        out = pairs.use(block.piece, blocks, lambda pair: _merge(raw, block, pair))
        return raw, out


def _merge(raw: bytes, block: _Block, pair: Pair) -> memoryview:
    """Rows [start, stop) of round(W + scale * b @ a) as bytes."""
    tensor, change = block.piece.tensor, block.piece.change
    assert change is not None
    a, b = pair
    weight = np.frombuffer(raw, FLOATS[tensor.dtype]).reshape(-1, tensor.shape[1])
    out = np.empty(weight.shape, FLOATS[block.piece.dtype])
    factor = b[block.start : block.stop] * np.float32(change.scale)
    wide = np.dtype(np.float64 if tensor.dtype == "F64" else np.float32)
    limit = _LIMITS[block.piece.dtype]
    for at in range(0, len(weight), _ROWS):  # as much as stays in the core's cache
        total = np.matmul(factor[at : at + _ROWS], a).astype(wide, copy=False)
        total += weight[at : at + _ROWS].astype(wide, copy=False)
        if not (total.min() > -limit and total.max() < limit):  # false for NaN as well
            raise UserError(
                Fault(
                    " + ".join(change.keys),
                    f"makes {tensor.name} not finite in {block.piece.dtype}",
                    None,
                    "Merge an earlier step, or with dtype bfloat16 or float32 where float16 is too narrow.",
                )
            )
        out[at : at + _ROWS] = total
    return memoryview(out.view(np.uint8).reshape(-1).data)


def _extent(piece: Piece) -> int:
    return piece.tensor.shape[0] if piece.change else piece.tensor.size
