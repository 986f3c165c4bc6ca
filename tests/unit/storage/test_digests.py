"""A damaged checkpoint is a fault with its file, before anything reads its weights."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import tiny
from tunewright_workloads.gemma.checkpoint import Checkpoint

INDEX = "model.safetensors.index.json"


def shard(base: Path) -> Path:
    return sorted(base.glob("*.safetensors"))[1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda base: (base / INDEX).write_text("{"), INDEX),
        (lambda base: (base / INDEX).write_text("[]"), INDEX),
        (lambda base: (base / INDEX).write_text(json.dumps({"weight_map": ["a"]})), INDEX),
        (lambda base: (base / INDEX).write_text(json.dumps({"weight_map": {"a": 3}})), INDEX),
        (lambda base: shard(base).unlink(), "00002-of"),
        (lambda base: shard(base).write_bytes(b""), "00002-of"),
        (lambda base: shard(base).write_bytes(b"version https://git-lfs.github.com/spec/v1"), "00002-of"),
        (lambda base: shard(base).write_bytes((9).to_bytes(8, "little") + b"[1, 2, 3]"), "00002-of"),
        (lambda base: os.truncate(shard(base), 100), "00002-of"),
    ],
)
def test_a_damaged_checkpoint_is_named(damage: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    tiny.write(tmp_path)
    damage(tmp_path)
    for read in (storage.fingerprint, Checkpoint.open):
        with pytest.raises(UserError) as error:
            read(tmp_path)
        assert says in str(error.value)


def test_every_damaged_file_is_told_at_once(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    for path in files:
        path.write_bytes(b"")
    with pytest.raises(UserError) as error:
        storage.fingerprint(tmp_path)
    assert len(error.value.faults) == len(files)
