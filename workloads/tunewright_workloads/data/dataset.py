"""A dataset in memory: every row read, checked and encoded before anything is trained.

Tokens lie end to end in one array with offsets: a million rows are two arrays, not a million objects.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tunewright_workloads.contract.configs import DatasetConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.data import files, rows
from tunewright_workloads.data.chat import Encoder
from tunewright_workloads.data.tokenizer import Tokenizer

_CHUNK = 1024


@dataclass(frozen=True)
class Source:
    """A dataset file: the name that the user knows it by, and where it is."""

    name: str
    path: Path


@dataclass
class Dataset:
    """The rows that are trained on. Row i is `tokens[starts[i]:starts[i + 1]]`, likewise `mask`.

    tokens: int32 [total]; mask: bool [total], True where the token is a target; starts: int64 [n + 1].
    dropped: rows left out, by reason. formats, notes: how many rows. keys: a hash a row, of its tokens.
    """

    tokens: np.ndarray
    mask: np.ndarray
    starts: np.ndarray
    read: int
    dropped: dict[str, int]
    formats: dict[str, int]
    notes: dict[str, int]
    keys: list[bytes]
    digest: str
    sources: list[Source] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64 [n]."""
        return np.diff(self.starts)

    @property
    def trained(self) -> int:
        """Tokens with loss in one pass. A row's first token is never a target."""
        return int(self.mask.sum())

    @property
    def duplicates(self) -> int:
        """Rows that are an exact copy of an earlier one."""
        return len(self.keys) - len(set(self.keys))

    def row(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        span = slice(self.starts[i], self.starts[i + 1])
        return self.tokens[span], self.mask[span]


DROPS = {
    "overlong": "longer than dataset.maxLength",
    "answerTruncated": "nothing of the answer left within dataset.maxLength",
    "emptyAnswer": "no answer to train on (empty, or only thinking that the template drops)",
}


def build(
    sources: Sequence[Source], tokenizer: Tokenizer, config: DatasetConfig, *, what: str = "dataset.train"
) -> Dataset:
    """Reads and encodes every row. Raises UserError with all faults of all files (the first 50 in full)."""
    faults = files.Faults()
    encoder = Encoder(tokenizer, config.loss_on, config.thinking)
    tokens: list[np.ndarray] = []
    masks: list[np.ndarray] = []
    keys: list[bytes] = []
    dropped: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    read = 0
    for example in encoder.stream(_batched(_rows(sources, config, faults))):
        if isinstance(example, Fault):
            faults.add(example)
            continue
        read += 1
        row = example.row
        formats[row.format] += 1
        for note in (*example.notes, *(f"has the column {c}, which is not used" for c in row.extra)):
            notes[note] += 1
        ids, mask = example.tokens, example.mask
        if not mask[1:].any():
            dropped["emptyAnswer"] += 1
            continue
        if len(ids) > config.max_length:
            if config.overlong == "fail":
                faults.add(
                    Fault(
                        row.place,
                        f"is {len(ids)} tokens long; dataset.maxLength is {config.max_length} and "
                        "dataset.overlong is fail",
                        None,
                        "Raise maxLength, or set overlong to drop or truncate.",
                    )
                )
                continue
            if config.overlong == "drop":
                dropped["overlong"] += 1
                continue
            ids, mask = ids[: config.max_length], mask[: config.max_length]
            if not mask[1:].any():
                dropped["answerTruncated"] += 1
                continue
            notes["is cut to dataset.maxLength"] += 1
        mask = mask.copy()
        mask[0] = False
        tokens.append(ids)
        masks.append(mask)
        keys.append(hashlib.blake2b(ids.tobytes(), digest_size=16).digest())
    faults.check(f"{what} cannot be trained on")
    if not tokens:
        reasons = ", ".join(f"{n} {DROPS[k]}" for k, n in dropped.items())
        fix = "Raise dataset.maxLength." if dropped["overlong"] or dropped["answerTruncated"] else None
        raise UserError(
            Fault(
                what, f"no row is left to train on: of {read} rows {reasons or 'none has tokens'}", None, fix
            )
        )
    starts = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum([len(t) for t in tokens], out=starts[1:])
    return Dataset(
        np.concatenate(tokens), np.concatenate(masks), starts, read, dict(dropped), dict(formats), dict(notes),
        keys, files.digest([s.path for s in sources]), list(sources),
    )  # fmt: skip


def _rows(sources: Sequence[Source], config: DatasetConfig, faults: files.Faults) -> Iterator[rows.Row]:
    for source in sources:
        for record in files.records(source.path, source.name, faults):
            row = rows.read(record, config.format, config.loss_on)
            if isinstance(row, list):
                faults.add(*row)
            else:
                yield row


def _batched(items: Iterator[rows.Row]) -> Iterator[list[rows.Row]]:
    while chunk := list(itertools.islice(items, _CHUNK)):
        yield chunk


def locate(uris: Sequence[str], work: Path, place: str = "dataset.train") -> list[Source]:
    """The files behind a list of URIs (a directory or a prefix: every dataset file in it)."""
    from tunewright_workloads import storage

    found: list[Source] = []
    faults: list[Fault] = []
    for i, uri in enumerate(uris):
        try:
            path = storage.localize(uri, work, place=f"{place}[{i}]")
        except UserError as error:
            faults += error.faults
            continue
        inside = files.expand(path)
        if not inside:
            faults.append(Fault(f"{place}[{i}]", "holds no dataset files (.jsonl, .jsonl.gz, .parquet)", uri))
        for file in inside:
            name = uri if file == path else f"{uri.rstrip('/')}/{file.relative_to(path).as_posix()}"
            found.append(Source(name.removeprefix("file://"), file))
    if faults:
        raise UserError(faults)
    return found
