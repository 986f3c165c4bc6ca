import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tunewright_workloads.contract.models import model
from tunewright_workloads.gemma import architecture, names, tiny
from tunewright_workloads.gemma.checkpoint import Checkpoint

SOURCES = Path(tiny.__file__).parents[2]


def digest(directory: Path) -> str:
    parts = [f"{p.name} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in sorted(directory.iterdir())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@pytest.mark.parametrize("variant", ["dense", "ple"])
def test_two_processes_write_the_same_bytes(
    variant: str, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    command = [
        sys.executable,
        "-m",
        "tunewright_workloads.gemma.tiny",
        str(tmp_path / "m"),
        "--variant",
        variant,
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(SOURCES)})
    assert digest(tmp_path / "m") == digest(checkpoints[variant])


def test_another_seed_writes_other_weights_and_the_same_files(
    tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    tiny.write(tmp_path, seed=1)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in checkpoints["dense"].iterdir()}
    assert digest(tmp_path) != digest(checkpoints["dense"])


def test_the_weights_are_those_of_every_machine() -> None:
    # Integer arithmetic on Philox's raw bits: a change here changes everybody's quickstart.
    drawn = tiny.normal("embed_tokens.weight", (1024, 128), 0)
    assert hashlib.sha256(drawn.tobytes()).hexdigest().startswith("07dd39149eda8bbc")
    assert abs(float(drawn.mean())) < 0.01 and abs(float(drawn.std()) - 1) < 0.01


@pytest.mark.parametrize("name", ["dense", "dense-text", "ple", "ple-text"])
def test_the_shards_and_the_index_agree(name: str, checkpoints: dict[str, Path]) -> None:
    directory = checkpoints[name]
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) >= 2 and files == {p.name for p in directory.glob("*.safetensors")}
    total = 0
    for file in files:
        with safe_open(directory / file, "numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert {t for t, f in index["weight_map"].items() if f == file} == set(opened.keys())
            total += sum(opened.get_tensor(tensor).nbytes for tensor in opened.keys())  # noqa: SIM118
    assert index["metadata"]["total_size"] == total
    prefix = names.check(architecture.read(directory), Checkpoint.open(directory).shapes, name)
    assert prefix == ("model." if name.endswith("text") else "model.language_model.")
    assert any("vision_tower" in t for t in index["weight_map"]) is (not name.endswith("text"))


def test_the_catalog_describes_the_dense_variant(checkpoints: dict[str, Path]) -> None:
    known, arch = model("gemma-4-tiny"), architecture.read(checkpoints["dense"])
    assert [known.is_global(i) for i in range(known.layers)] == list(arch.globals)
    for field in ("layers", "embed", "hidden", "heads", "local_kv_heads", "global_kv_heads", "head_dim"):
        assert getattr(known, field) == getattr(arch, field), field
    assert (known.window, known.vocab, known.k_eq_v) == (arch.window, arch.vocab, arch.k_eq_v)
    count = sum(int(np.prod(shape)) for shape in names.tensors(arch).values())
    assert round(count / 1e3) == round(known.params / 1e3)


def test_a_bfloat16_checkpoint_says_so_and_is_half_the_size(tmp_path: Path) -> None:
    tiny.write(tmp_path, dtype="bfloat16")
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.dtypes.values()) == {"BF16"}
    assert architecture.read(tmp_path).dtype == "bfloat16"
    assert checkpoint.source("model.language_model.norm.weight")[:].dtype.name == "bfloat16"
