"""What a URI becomes on this machine."""

import os
from pathlib import Path

import pytest

from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError


def test_a_file_uri_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert storage.localize(f"file://{tmp_path}/rows.jsonl", tmp_path / "work") == tmp_path / "rows.jsonl"
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("file:///no/such/file", "no such file"),
        ("sample://fag", "sample://faq"),
        ("pvc://claim/path", "file:///mnt/claims"),
        ("/plain/path", "file:///plain/path"),
    ],
)
def test_a_uri_that_cannot_be_read_is_refused_with_its_place(uri: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        storage.localize(uri, tmp_path, place="dataset.train[0]")
    assert "dataset.train[0]" in str(error.value)
    assert says in str(error.value)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, says in {
        "loop": "symbolic links",
        "file/below": "no such file",
        "n" * 300: "too long",
        "pipe": "not a pipe or a device",
    }.items():
        with pytest.raises(UserError, match=says):
            storage.localize(f"file://{tmp_path}/{name}", tmp_path / "work")
