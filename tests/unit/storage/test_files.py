"""file://: what a put does between two volumes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tunewright_workloads import storage


@pytest.fixture
def two_mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """`work` and `claim` as a pod has them: volumes of one disk, with one device number, and two mounts."""
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if {self.relative_to(tmp_path).parts[0], Path(target).relative_to(tmp_path).parts[0]} != {"claim"}:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    work = tmp_path / "work"
    work.mkdir()
    return work, tmp_path / "claim"


def test_a_file_of_one_mount_is_put_into_another(two_mounts: tuple[Path, Path]) -> None:
    work, claim = two_mounts
    source = work / "adapter.safetensors"
    source.write_bytes(b"weights")
    store = storage.store(f"file://{claim}", place="output")
    store.put("adapter/adapter.safetensors", source)
    assert (claim / "adapter/adapter.safetensors").read_bytes() == b"weights"
    assert not source.exists()
    assert [p.name for p in claim.rglob("*") if p.is_file()] == ["adapter.safetensors"]


def test_another_error_is_told_and_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    source = tmp_path / "weights"
    source.write_bytes(b"weights")
    store = storage.store(f"file://{tmp_path}/out", place="output")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("weights", source)
    assert source.exists()
