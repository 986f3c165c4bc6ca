"""Dataset files as records: JSON lines, gzip of them, and Parquet; every fault with its line.

What stands in a file is decided by its first bytes, not by its name: exports are renamed often.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from tunewright_workloads.contract.faults import Fault, UserError, show

_BOM = b"\xef\xbb\xbf"
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_GZIP, _PARQUET, _ZIP, _ZSTD = b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Record:
    """One row as it stands in a file. `line` counts from 1; in Parquet it is the row's number."""

    file: str
    line: int
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Faults:
    """Collects every fault, keeps the first `limit` of them and the number of the others."""

    def __init__(self, limit: int = 50) -> None:
        self.limit, self.count = limit, 0
        self.kept: list[Fault] = []

    def add(self, *faults: Fault) -> None:
        self.count += len(faults)
        self.kept += faults[: max(0, self.limit - len(self.kept))]

    def error(self, title: str) -> UserError:
        more = self.count - len(self.kept)
        tail = [Fault(f"... and {more} more", "")] if more else []
        return UserError([*self.kept, *tail], f"{title} ({self.count} faults)" if self.count > 1 else title)

    def check(self, title: str) -> None:
        """Raises UserError when there is any fault."""
        if self.count:
            raise self.error(title)


def digest(paths: list[Path]) -> str:
    """sha256 over the contents of the files, in order: names and places do not matter."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def expand(path: Path) -> list[Path]:
    """A file itself; of a directory its dataset files, sorted by name."""
    if not path.is_dir():
        return [path]
    endings = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".ndjson")
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(endings))


def records(path: Path, name: str, faults: Faults) -> Iterator[Record]:
    """Every readable row of a file, in order; what cannot be read is added to `faults`."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == _PARQUET:
            yield from _parquet(path, name, faults)
        elif head == _ZIP:
            faults.add(Fault(name, "is a zip archive", None, "Unpack it, or compress with gzip."))
        elif head == _ZSTD:
            faults.add(
                Fault(name, "is compressed with zstd, which is not read", None, "Use gzip or Parquet.")
            )
        elif head[:2] == _GZIP:
            with gzip.open(path, "rb") as file:
                yield from _lines(cast(IO[bytes], file), name, faults)
        else:
            with path.open("rb") as file:
                yield from _lines(file, name, faults)
    except FileNotFoundError:
        faults.add(Fault(name, "does not exist"))
    except IsADirectoryError:
        faults.add(Fault(name, "is a directory without dataset files"))
    except OSError as error:
        faults.add(Fault(name, f"cannot be read: {error.strerror or error}"))


class _DuplicateKeyError(ValueError):
    pass


class _ConstantError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return row


def _constant(text: str) -> Any:
    raise _ConstantError(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)


def parse(text: str) -> Any:
    """JSON without duplicate keys, NaN or Infinity. Raises ValueError that says what is wrong."""
    try:
        return _DECODER.decode(text)
    except _DuplicateKeyError as error:
        raise ValueError(f"the key {show(str(error))} stands twice in one object") from None
    except _ConstantError as error:
        raise ValueError(f"{error} is not JSON") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _lines(file: IO[bytes], name: str, faults: Faults) -> Iterator[Record]:
    rows, line, pending = 0, 0, None
    try:
        for line, raw in enumerate(file, 1):
            if line == 1:
                if raw[:2] in _WIDE or raw[1:2] == b"\x00":
                    faults.add(
                        Fault(
                            name,
                            "must be UTF-8, this looks like UTF-16",
                            None,
                            "Convert it: iconv -f UTF-16 -t UTF-8.",
                        )
                    )
                    return
                raw = raw.removeprefix(_BOM)
            if not raw.strip():
                continue
            place = f"{name}:{line}"
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                faults.add(
                    Fault(
                        place,
                        f"must be UTF-8; byte {error.start + 1} of the line is 0x{raw[error.start]:02x}",
                        None,
                        "Convert the file: iconv -f LATIN1 -t UTF-8 (or its true encoding).",
                    )
                )
                rows += 1
                continue
            if "\x00" in text:
                faults.add(Fault(place, "holds NUL bytes", None, "Was the file cut off or copied as binary?"))
                rows += 1
                continue
            try:
                value = parse(text.strip())
            except ValueError as error:
                if (rows == 0 and text.strip() in ("[", "{")) or (rows == 0 and text.lstrip()[:1] == "["):
                    faults.add(_document(name, text))
                    return
                faults.add(Fault(place, str(error)))
                rows += 1
                continue
            rows += 1
            if pending is not None:
                faults.add(_not_object(*pending))
                pending = None
            if isinstance(value, dict):
                yield Record(name, line, value)
            elif isinstance(value, list) and rows == 1:
                pending = (place, value)
            else:
                faults.add(_not_object(place, value))
        if pending is not None:
            faults.add(_document(name, "[") if rows == 1 else _not_object(*pending))
        if rows == 0:
            faults.add(Fault(name, "holds no rows", None, "Is it the right file?"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        faults.add(Fault(f"{name}:{line + 1}", f"the compressed data is damaged or cut off: {error}"))


def _document(name: str, text: str) -> Fault:
    if text.lstrip().startswith("["):
        return Fault(
            name,
            "is one JSON array, not one JSON object a line",
            None,
            "Write lines: jq -c '.[]' FILE > FILE.jsonl.",
        )
    return Fault(
        name,
        "is one JSON document over several lines, not one JSON object a line",
        None,
        "Write lines: jq -c . FILE > FILE.jsonl.",
    )


def _not_object(place: str, value: Any) -> Fault:
    if isinstance(value, list):
        fix = (
            'Write {"messages": [...]} for one conversation; several conversations take a line each.'
            if value
            else None
        )
        return Fault(place, "must be a JSON object, not a list", show(value), fix)
    return Fault(place, "must be a JSON object", show(value))


def _parquet(path: Path, name: str, faults: Faults) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        if table.metadata.num_rows == 0:
            faults.add(Fault(name, "holds no rows", None, "Is it the right file?"))
        line = 0
        for batch in table.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                line += 1
                yield Record(name, line, _without_nulls(value, top=True))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        faults.add(Fault(name, f"cannot be read as Parquet: {str(error).splitlines()[0]}"))


def _without_nulls(value: Any, top: bool = False, key: str = "") -> Any:
    """Parquet gives every struct all the fields of the column: the ones that are null were absent.

    `content` keeps its null, since an absent content is a fault and must be seen.
    """
    if isinstance(value, dict):
        return {k: _without_nulls(v, key=k) for k, v in value.items() if v is not None or k == "content"}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value
