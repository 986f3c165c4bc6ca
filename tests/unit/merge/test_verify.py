"""verify finds what is wrong with a published model, whatever it is."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import merging
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.merge import publish, verify


@pytest.fixture
def out(dense: SimpleNamespace, tmp_path: Path) -> Path:
    publish.merge(
        merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work", dtype="keep")
    )
    return tmp_path / "out"


def check(out: Path) -> str:
    return verify.verify(f"file://{out}", out.parent / "check", run=False, sample=1000).text()


def signed(out: Path) -> None:
    """Makes the manifest agree with the files again, as a wrong merge would have written it."""
    path = out / "tunewright.json"
    data = json.loads(path.read_text())
    for name in data["files"]:
        if (out / name).exists():
            raw = (out / name).read_bytes()
            data["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    path.write_text(json.dumps(data))


def edit(out: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    for path in sorted(out.glob("*.safetensors")):
        data = load_file(path)
        if any(n.endswith("layers.1.mlp.up_proj.weight") for n in data):
            change(data)
            save_file(data, path, {"format": "pt"})
            signed(out)
            return
    raise AssertionError("no such tensor")


def name_of(data: dict[str, np.ndarray], end: str = "layers.1.mlp.up_proj.weight") -> str:
    return next(n for n in data if n.endswith(end))


def test_a_good_model_passes_every_check(out: Path) -> None:
    told = check(out)
    assert "WRONG" not in told and "skipped" not in told
    assert told.count("ok ") == 6


def flip(out: Path) -> None:
    path = sorted(out.glob("*.safetensors"))[2]
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))


def stranger(out: Path) -> None:
    (out / "model-extra.safetensors").write_bytes(b"x")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip, "sha256"),
        (stranger, "model-extra.safetensors"),
        (lambda out: (out / "config.json").write_text("{}"), "config.json"),
        (lambda out: (out / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda out: ((out / "tokenizer_config.json").write_text("{}"), signed(out)), "differs from the base"),
        (lambda out: edit(out, lambda d: d.pop(name_of(d))), "up_proj.weight"),
        (lambda out: edit(out, lambda d: d[name_of(d)].__setitem__((0, 0), np.nan)), "NaN"),
        (lambda out: edit(out, lambda d: d[name_of(d)].__setitem__((0, 0), 0.5)), "is not base + adapter"),
        (lambda out: edit(out, lambda d: d.__setitem__(name_of(d), d[name_of(d)].astype(np.float16))), "dtype"),
        (lambda out: edit(out, lambda d: d.__setitem__(name_of(d), d[name_of(d)].T.copy())), "shape"),
        (lambda out: edit(out, lambda d: d[name_of(d, "norm.weight")].__setitem__(0, 9)), "was not to be changed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(damage: Callable[[Path], object], says: str, out: Path) -> None:
    damage(out)
    told = check(out)
    assert "WRONG" in told and says in told, told


def test_an_adapter_that_has_changed_since_is_told(dense: SimpleNamespace, out: Path, tmp_path: Path) -> None:
    merging.save(tmp_path / "train", dense.base, merging.arrays(dense.base, seed=5))
    found = verify.verify(f"file://{out}", tmp_path / "check", adapter=f"file://{tmp_path}/train", run=False)
    assert "not the one that was merged" in found.text()


def test_without_the_base_the_rest_is_still_checked(out: Path) -> None:
    path = out / "tunewright.json"
    data = json.loads(path.read_text())
    data["base"]["source"] = "file:///no/such/base"
    path.write_text(json.dumps(data))
    told = check(out)
    assert "skipped  comparison with base" in told and "WRONG" not in told


def test_a_file_is_no_model(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(out / "config.json")]) == 2
    assert "no merge has finished here" in capsys.readouterr().err


def test_a_directory_without_a_manifest_is_refused(out: Path) -> None:
    (out / "tunewright.json").unlink()
    with pytest.raises(UserError, match="no merge has finished"):
        check(out)


@pytest.mark.parametrize("sample", ["-1", "many"])
def test_a_sample_that_is_no_count_is_refused(sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        verify.main(["model", f"--sample={sample}"])
    assert ended.value.code == 2
    assert f"must be a number from 0, not '{sample}'" in capsys.readouterr().err
