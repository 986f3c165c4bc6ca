"""What stands in a dataset file, whatever it is called, and every fault with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.rows import assistant, chat, user, write
from tunewright_workloads.data import files

ROW = json.dumps(chat())


def read(path: Path) -> tuple[list[files.Record], list[str]]:
    faults = files.Faults()
    found = list(files.records(path, path.name, faults))
    return found, [str(f) for f in faults.kept]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("plain", f"{ROW}\n{ROW}\n".encode(), [1, 2]),
        ("a byte order mark", b"\xef\xbb\xbf" + ROW.encode(), [1]),
        ("Windows line ends", f"{ROW}\r\n{ROW}\r\n".encode(), [1, 2]),
        ("blank lines between and at the end", f"\n{ROW}\n\n  \n{ROW}\n\n\n".encode(), [2, 5]),
        ("no newline at the end", ROW.encode(), [1]),
        ("gzip, whatever the name", gzip.compress(f"{ROW}\n{ROW}\n".encode()), [1, 2]),
    ],
)
def test_rows_are_read_from_a_file_with(tmp_path: Path, name: str, content: bytes, lines: list[int]) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    found, faults = read(path)
    assert not faults
    assert [r.line for r in found] == lines
    assert all(r.value == chat() for r in found)


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        (b"", "train.jsonl", "holds no rows"),
        (b"\n\n  \n", "train.jsonl", "holds no rows"),
        (ROW.encode("utf-16"), "train.jsonl", "UTF-16"),
        (ROW.encode("utf-16-le"), "train.jsonl", "UTF-16"),
        (f"[{ROW},\n{ROW}]\n".encode(), "train.jsonl", "one JSON array"),
        (f"[{ROW}, {ROW}]".encode(), "train.jsonl", "one JSON array"),
        (json.dumps([chat()], indent=2).encode(), "train.jsonl", "one JSON array"),
        (json.dumps(chat(), indent=2).encode(), "train.jsonl", "over several lines"),
        (b'{"text": "caf\xe9"}', "train.jsonl:1", "must be UTF-8; byte 14 of the line is 0xe9"),
        (f"{ROW}\n".encode() + b'{"te\x00xt": 1}', "train.jsonl:2", "NUL"),
        (f"{ROW}\n{ROW[:-5]}\n{ROW}".encode(), "train.jsonl:2", "is not JSON"),
        (b'{"text": "a", "text": "b"}', "train.jsonl:1", '"text" stands twice'),
        (b'{"text": NaN}', "train.jsonl:1", "NaN is not JSON"),
        (b'{"text": -Infinity}', "train.jsonl:1", "-Infinity is not JSON"),
        (f'{ROW}\n"text"'.encode(), "train.jsonl:2", "must be a JSON object"),
        (f"{ROW}\n[{ROW}]".encode(), "train.jsonl:2", "not a list"),
        (f"[{ROW}]\n[{ROW}]".encode(), "train.jsonl:1", "not a list"),
        (("[" * 100_000).encode(), "train.jsonl", "one JSON array"),
        (f"{ROW}\n{'[' * 100_000}".encode(), "train.jsonl:2", "nested too deeply"),
        (gzip.compress(f"{ROW}\n".encode() * 50)[:-9], "train.jsonl:", "damaged or cut off"),
        (b"PK\x03\x04abc", "train.jsonl", "zip archive"),
        (b"\x28\xb5\x2f\xfdabc", "train.jsonl", "zstd"),
        (b"PAR1 and then nothing", "train.jsonl", "cannot be read as Parquet"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, content: bytes, place: str, says: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    _, faults = read(path)
    assert faults
    assert faults[0].startswith(place)
    assert says in faults[0]


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    assert read(tmp_path / "no.jsonl")[1] == ["no.jsonl: does not exist"]


def test_faults_after_good_rows_do_not_hide_later_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROW, "{", ROW, '{"a": NaN}', ROW)
    found, faults = read(path)
    assert [r.line for r in found] == [1, 3, 5]
    assert [f.split(": ")[0] for f in faults] == ["a.jsonl:2", "a.jsonl:4"]


def test_parquet_rows_lose_the_fields_that_their_column_added(tmp_path: Path) -> None:
    rows = [
        chat(user(), assistant("", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}])),
        chat(user(), assistant("b")),
    ]
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    found, faults = read(path)
    assert not faults
    assert [r.value for r in found] == rows
    assert [r.line for r in found] == [1, 2]


def test_only_the_first_faults_are_kept_and_the_others_counted() -> None:
    faults = files.Faults(limit=3)
    for i in range(10):
        faults.add(files.Fault(f"a:{i}", "is wrong"))
    text = faults.error("a cannot be trained on").text()
    assert "(10 faults)" in text
    assert "a:2" in text and "a:3" not in text
    assert "... and 7 more" in text


def test_the_digest_follows_content_and_order_and_not_names(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", ROW), write(tmp_path / "b", ROW + " ")
    again = write(tmp_path / "c", ROW)
    assert files.digest([a, b]) == files.digest([again, b])
    assert files.digest([a, b]) != files.digest([b, a])


def test_a_directory_stands_for_its_dataset_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "c.parquet", "README.md", "sub/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [p.relative_to(tmp_path).as_posix() for p in files.expand(tmp_path)]
    assert names == ["a.jsonl.gz", "b.jsonl", "c.parquet", "sub/d.jsonl"]
