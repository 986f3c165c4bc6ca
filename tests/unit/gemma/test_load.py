"""What goes wrong with the files of a checkpoint; that the numbers are right is test_parity's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import gemma
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import load, names
from tunewright_workloads.gemma.architecture import read


@pytest.fixture
def copy(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoints["dense"], tmp_path / "model"))


def refusal(directory: Path) -> str:
    with pytest.raises(UserError) as caught:
        load.load(directory, mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32")
    return caught.value.text()


def rewrite(directory: Path, file: str, change: object) -> None:
    tensors = load_file(directory / file)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, directory / file)


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / "model-00002-of-00004.safetensors").unlink()
    text = refusal(copy)
    assert "model-00002-of-00004.safetensors: is named by the index and missing" in text


def test_a_cut_shard_is_named(copy: Path) -> None:
    path = copy / "model-00003-of-00004.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model-00003-of-00004.safetensors: is not readable" in refusal(copy)


def test_an_index_that_is_no_index_is_named(copy: Path) -> None:
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../b"}}))
    assert "file names beside it" in refusal(copy)


def test_a_tensor_that_the_index_promises_and_no_file_holds_is_named(copy: Path) -> None:
    rewrite(copy, "model-00004-of-00004.safetensors", lambda t: t.pop("model.language_model.norm.weight"))
    assert "model.language_model.norm.weight: is named by the index and missing" in refusal(copy)


def test_integer_weights_are_refused(copy: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        name = "model.language_model.norm.weight"
        tensors[name] = tensors[name].astype(np.int8)

    rewrite(copy, "model-00004-of-00004.safetensors", change)
    assert "must be one of F32" in refusal(copy)


def test_an_empty_directory_is_refused(copy: Path) -> None:
    for path in copy.glob("model*"):
        path.unlink()
    assert "holds no safetensors" in refusal(copy)


@pytest.mark.parametrize("name", ["dense", "ple"])
def test_the_table_of_names_is_what_tunix_has(name: str, checkpoints: dict[str, Path]) -> None:
    arch = read(checkpoints[name])
    model = load.abstract(arch, "float32", "float32")
    specs = load.specs(model)
    assert set(specs) == set(names.leaves(arch))
    assert all(specs[path] == load.PartitionSpec(None) for path in specs if path.endswith("norm.scale"))


def test_files_without_an_index_are_read(copy: Path, checkpoints: dict[str, Path]) -> None:
    (copy / "model.safetensors.index.json").unlink()
    on = gemma.mesh()
    given = {"mesh": on, "param_dtype": "float32", "compute_dtype": "float32"}
    ids = gemma.tokens(1, 8)
    np.testing.assert_array_equal(
        gemma.tunix_logits(load.load(copy, **given), ids, on),
        gemma.tunix_logits(load.load(checkpoints["dense"], **given), ids, on),
    )


def test_weights_are_stored_in_the_dtype_that_was_asked_for(checkpoints: dict[str, Path]) -> None:
    model = load.load(checkpoints["ple"], mesh=gemma.mesh(), param_dtype="bfloat16", compute_dtype="bfloat16")
    assert model.layers[0].attn.q_einsum.w.get_value().dtype.name == "bfloat16"
    assert not hasattr(model.layers[3].attn, "kv_einsum")
