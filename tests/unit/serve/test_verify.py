"""A directory is served only as its manifest describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.serving import manifest
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.lineage import MANIFEST
from tunewright_workloads.serve.verify import digest, verify, verify_remote


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    target = tmp_path / "out" / "merged"
    (target / "sub").mkdir(parents=True)
    (target / "model.safetensors").write_bytes(b"weights")
    (target / "config.json").write_text("{}")
    (target / "sub" / "extra.txt").write_text("x")
    manifest(target)
    return target


def test_a_complete_directory_gives_its_manifest(directory: Path) -> None:
    assert set(verify(directory).files) == {"model.safetensors", "config.json", "sub/extra.txt"}
    assert len(digest(directory)) == 64


def test_every_file_that_differs_is_named_at_once(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weightz")
    (directory / "config.json").write_text("{ }")
    (directory / "sub" / "extra.txt").unlink()
    (directory / "model-2.safetensors").write_bytes(b"more")
    with pytest.raises(UserError) as error:
        verify(directory)
    text = str(error.value)
    assert "model.safetensors: does not have the sha256" in text
    assert "config.json: must have 2 bytes as the manifest says (got 3)" in text
    assert "sub/extra.txt: is in the manifest and not in the directory" in text
    assert "model-2.safetensors: is not in the manifest" in text


def test_without_hashes_sizes_still_count(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weightz")
    verify(directory, hashes=False)
    (directory / "model.safetensors").write_bytes(b"weight")
    with pytest.raises(UserError, match="must have 7 bytes"):
        verify(directory, hashes=False)


@pytest.mark.parametrize("place", [verify, lambda d: verify_remote(f"file://{d}")], ids=["local", "remote"])
def test_an_unfinished_merge_is_refused_and_the_folder_below_is_hinted_at(
    directory: Path, place: object
) -> None:
    assert callable(place)
    with pytest.raises(
        UserError, match=r"needs a directory with a tunewright.json.*Did you mean .*/merged\?"
    ):
        place(directory.parent)
    (directory / MANIFEST).unlink()
    with pytest.raises(UserError, match="Merge it first"):
        place(directory)


def test_sizes_behind_a_uri_are_checked(directory: Path) -> None:
    assert verify_remote(f"file://{directory}") == verify(directory)
    (directory / "config.json").write_text("{ }")
    with pytest.raises(UserError, match=r"config.json: must have 2 bytes as the manifest says \(got 3\)"):
        verify_remote(f"file://{directory}")


@pytest.mark.parametrize("text", ["", "{", '{"schema": "x"}'])
def test_a_manifest_that_is_none_is_refused_by_its_place(directory: Path, text: str) -> None:
    (directory / MANIFEST).write_text(text)
    with pytest.raises(UserError, match=r"tunewright\.json: .*is not a manifest's"):
        verify(directory)


def test_a_file_instead_of_a_directory_is_refused(directory: Path) -> None:
    with pytest.raises(UserError, match="needs a directory"):
        verify(directory / "config.json")
