"""What a merge publishes: content, layout, manifest, and what a second run does."""

import hashlib
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from support import merging
from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.lineage import Manifest
from tunewright_workloads.merge import layout, publish, stream, tensors, verify
from tunewright_workloads.merge.adapter import Change
from tunewright_workloads.storage.digests import crc32c


def same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("variant", ["dense", "ple"])
@pytest.mark.parametrize("size", [None, 200_000])
@pytest.mark.parametrize("dtype", ["keep", "bfloat16", "float16"])
def test_every_changed_weight_is_base_plus_scaled_delta_and_every_other_is_the_base(
    variant: str, size: int | None, dtype: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: SimpleNamespace = request.getfixturevalue(variant)
    config = merging.config(
        made.base, made.adapter, tmp_path / "out", tmp_path / "work", dtype=dtype, max_shard_size=size
    )
    manifest = publish.merge(config)
    numpy = {"keep": None, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype]
    want = merging.expected(made.base, made.flat, 2.0, numpy)
    same(merging.tensors(tmp_path / "out"), want)
    base = merging.tensors(made.base)
    changed = [n for n, array in want.items() if array.tobytes() != base[n].tobytes()]
    assert len(changed) >= manifest.adapter.modules == len(made.flat) // 2
    assert {n for n in base if "vision" in n}.isdisjoint(changed)
    if size:
        shards = sorted((tmp_path / "out").glob("*.safetensors"))
        assert len(shards) > 4 and all(p.stat().st_size < size + 20_000 for p in shards if len(_names(p)) > 1)


def _names(path: Path) -> list[str]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return [n for n in json.loads(raw[8 : 8 + length]) if n != "__metadata__"]


def test_shards_index_and_other_files_are_the_bases_own(dense: SimpleNamespace, tmp_path: Path) -> None:
    publish.merge(
        merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work", dtype="keep")
    )
    base, out = merging.content(dense.base), merging.content(tmp_path / "out")
    assert out.keys() == base.keys() | {"tunewright.json", "README.md"}
    for name, data in base.items():
        if name.endswith(".safetensors"):
            length = 8 + int.from_bytes(data[:8], "little")
            assert out[name][:length] == data[:length]
        else:
            assert out[name] == data, name


def test_weights_in_other_formats_and_the_bases_card_stay_behind(
    dense: SimpleNamespace, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(dense.base, base)
    for name in ("pytorch_model.bin", "model.gguf", "README.md", ".gitattributes", "adapter_config.json"):
        (base / name).write_text("the base's")
    (base / "original").mkdir()
    (base / "original" / "params.json").write_text("{}")
    (base / "LICENSE").write_text("terms")
    publish.merge(merging.config(base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    out = merging.content(tmp_path / "out")
    assert out["LICENSE"] == b"terms"
    assert b"the base's\n" not in out["README.md"] and b"fine-tuned" in out["README.md"]
    assert not {"pytorch_model.bin", "model.gguf", "original/params.json", "adapter_config.json"} & out.keys()


def test_a_single_file_base_stays_a_single_file(dense: SimpleNamespace, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(dense.base, base, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_file(merging.tensors(dense.base), base / "model.safetensors", {"format": "pt"})
    merging.save(tmp_path / "train", base, dense.flat)
    publish.merge(merging.config(base, tmp_path / "train", tmp_path / "out", tmp_path / "work", dtype="keep"))
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names and "model.safetensors.index.json" not in names
    same(merging.tensors(tmp_path / "out"), merging.expected(base, dense.flat, 2.0, None))


def test_mixed_dtypes_keep_theirs(dense: SimpleNamespace, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(dense.base, base, ignore=shutil.ignore_patterns("*.safetensors*"))
    mixed: dict[str, Any] = {}
    for i, (name, array) in enumerate(sorted(merging.tensors(dense.base).items())):
        mixed[name] = array.astype([np.float32, ml_dtypes.bfloat16, np.float16, np.float64][i % 4])
    mixed["model.vision_tower.table"] = np.arange(7, dtype=np.int8)
    mixed["model.vision_tower.empty"] = np.zeros((0, 3), np.float32)
    save_file(mixed, base / "model.safetensors", {"format": "pt"})
    merging.save(tmp_path / "train", base, dense.flat)
    publish.merge(merging.config(base, tmp_path / "train", tmp_path / "out", tmp_path / "work", dtype="keep"))
    got = merging.tensors(tmp_path / "out")
    want = merging.expected(base, dense.flat, 2.0, None)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        if array.dtype == np.float64 and not np.array_equal(array, mixed[name]):
            np.testing.assert_allclose(got[name], array, rtol=1e-6)  # ours adds in f64
        else:
            assert got[name].tobytes() == array.tobytes(), name


def test_the_manifest_has_every_file_and_the_whole_lineage(dense: SimpleNamespace, tmp_path: Path) -> None:
    config = merging.config(
        dense.base, dense.adapter, tmp_path / "out", tmp_path / "work", dataset_digest="d1"
    )
    manifest = publish.merge(config)
    out = merging.content(tmp_path / "out")
    assert Manifest.model_validate_json(out.pop("tunewright.json")) == manifest
    assert {n: (d.size, d.sha256) for n, d in manifest.files.items()} == {
        n: (len(data), hashlib.sha256(data).hexdigest()) for n, data in out.items()
    }
    digests = [[p.name, f"crc32c:{crc32c(p.read_bytes())}"] for p in sorted(dense.base.glob("*.safetensors"))]
    assert manifest.base.digest == hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    assert (manifest.adapter.step, manifest.adapter.rank, manifest.adapter.alpha) == (3, 4, 8.0)
    assert manifest.dataset_digest == "d1"


@pytest.mark.parametrize("size", [None, 300_000])
def test_a_second_run_changes_nothing_and_writes_nothing(
    size: int | None, dense: SimpleNamespace, tmp_path: Path
) -> None:
    config = merging.config(
        dense.base, dense.adapter, tmp_path / "out", tmp_path / "work", max_shard_size=size
    )
    first = publish.merge(config)
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert publish.merge(config) == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()} == stamps


def test_the_bits_do_not_depend_on_how_much_is_read_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((300, 1000)).astype(ml_dtypes.bfloat16)
    save_file({"w": weight}, tmp_path / "base.safetensors")
    raw = (tmp_path / "base.safetensors").read_bytes()
    header = tensors.read("base.safetensors", len(raw), lambda at, count: raw[at : at + count])
    pair = [rng.standard_normal(shape).astype(np.float32) for shape in ((16, 1000), (300, 16))]
    change = Change("w", 0.5, 16, 1000, 300, lambda: (pair[0], pair[1]))
    piece = layout.Piece(header.tensors[0], "F32", change)  # F32: no rounding hides a difference
    found = set()
    for block in (1, 100_000, 300_000, 1 << 20):
        with (
            stream.Streamer(block=block) as streamer,
            stream.Files({"base.safetensors": tmp_path / "base.safetensors"}) as files,
        ):
            found.add(b"".join(map(bytes, streamer.merged(files, piece))))
    assert len(found) == 1
    want = weight.astype(np.float32) + 0.5 * pair[1] @ pair[0]
    np.testing.assert_allclose(
        np.frombuffer(found.pop(), np.float32).reshape(300, 1000), want, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("damage", ["config.json", ".safetensors"])
def test_a_published_model_that_was_damaged_is_merged_again(
    damage: str, dense: SimpleNamespace, tmp_path: Path
) -> None:
    config = merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work")
    first = publish.merge(config)
    whole = merging.content(tmp_path / "out")
    victim = tmp_path / "out" / next(n for n in whole if n.endswith(damage))
    data = bytearray(victim.read_bytes())
    data[-2] ^= 1  # of the same size
    victim.write_bytes(data)
    assert publish.merge(config) == first
    assert merging.content(tmp_path / "out") == whole


def test_another_adapter_replaces_the_model_and_leaves_nothing_of_the_old_one(
    dense: SimpleNamespace, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    publish.merge(merging.config(dense.base, dense.adapter, out, tmp_path / "work", max_shard_size=200_000))
    flat = merging.arrays(dense.base, seed=1)
    merging.save(tmp_path / "train", dense.base, flat)
    publish.merge(merging.config(dense.base, tmp_path / "train", out, tmp_path / "work", dtype="keep"))
    same(merging.tensors(out), merging.expected(dense.base, flat, 2.0, None))
    assert merging.content(out).keys() == merging.content(dense.base).keys() | {
        "README.md",
        "tunewright.json",
    }


def test_two_runs_at_once_leave_one_right_model(dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = merging.arrays(dense.base, seed=1)
    merging.save(tmp_path / "train", dense.base, flat)
    configs = [
        merging.config(dense.base, adapter, tmp_path / "out", tmp_path / f"work{i}", dtype="keep")
        for i, adapter in enumerate([dense.adapter, tmp_path / "train", dense.adapter])
    ]
    errors: list[BaseException] = []

    def run(config: Any) -> None:
        try:
            publish.merge(config)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(c,)) for c in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = verify.verify(f"file://{tmp_path}/out", tmp_path / "check", run=False)
    assert not found.faults and not found.skipped
    got = merging.tensors(tmp_path / "out")
    wanted = [merging.expected(dense.base, f, 2.0, None) for f in (dense.flat, flat)]
    name = next(n for n in got if n.endswith("up_proj.weight"))
    match = next(w for w in wanted if w[name].tobytes() == got[name].tobytes())
    same(got, match)


def test_an_output_that_cannot_be_a_directory_is_the_users_fault(
    dense: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match="out"):
        publish.merge(merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert (tmp_path / "out").read_text() == "a file"


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    dense: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=10**6, used=0, free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(storage.StorageError, match="MB are free"):
        publish.merge(merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert not list((tmp_path / "out").glob("*.safetensors"))
