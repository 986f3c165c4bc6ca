"""What a merge refuses, with the name of what is wrong, before it writes anything."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import merging
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.merge import __main__ as command
from tunewright_workloads.merge import publish


def refused(config: Any) -> str:
    with pytest.raises(UserError) as error:
        publish.merge(config)
    output = Path(config.output.removeprefix("file://"))
    assert not (output / "tunewright.json").exists()
    assert not list(output.glob("*.safetensors"))
    return str(error.value)


def variant(dense: SimpleNamespace, tmp_path: Path, flat: dict[str, np.ndarray], **state: Any) -> Any:
    merging.save(tmp_path / "train", dense.base, flat, **state)
    return merging.config(dense.base, tmp_path / "train", tmp_path / "out", tmp_path / "work")


def test_an_adapter_tensor_of_no_projection_is_named(dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = dict(dense.flat)
    flat["layers.0.attn.z_einsum.w_lora_a"] = np.zeros((4, 4), np.float32)
    assert "layers.0.attn.z_einsum.w_lora_a" in refused(variant(dense, tmp_path, flat))


def test_half_an_adapter_is_named(dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = dict(dense.flat)
    del flat["layers.1.mlp.up_proj.kernel_lora_b"]
    assert "layers.1.mlp.up_proj.kernel_lora_b: the adapter has no such tensor" in refused(
        variant(dense, tmp_path, flat)
    )


def test_a_layer_that_the_targets_promise_and_the_adapter_lacks_is_named(
    dense: SimpleNamespace, tmp_path: Path
) -> None:
    flat = {k: v for k, v in dense.flat.items() if not k.startswith("layers.2.attn.q_einsum")}
    told = refused(variant(dense, tmp_path, flat, targets=["q_proj", "o_proj"]))
    assert "layers.2.attn.q_einsum.w_lora_a" in told and "layers.2.attn.q_einsum.w_lora_b" in told


def test_an_adapter_of_another_shape_is_named(dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = dict(dense.flat)
    flat["layers.0.mlp.up_proj.kernel_lora_b"] = np.zeros((4, 12), np.float32)
    assert "layers.0.mlp.up_proj.kernel_lora_b" in refused(variant(dense, tmp_path, flat))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_adapter_that_is_not_finite_is_named(value: float, dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = dict(dense.flat)
    flat["layers.0.attn.q_einsum.w_lora_a"] = flat["layers.0.attn.q_einsum.w_lora_a"].copy()
    flat["layers.0.attn.q_einsum.w_lora_a"][0, 0] = value
    assert "layers.0.attn.q_einsum.w_lora_a" in refused(variant(dense, tmp_path, flat))


def test_an_adapter_of_another_base_is_refused(dense: SimpleNamespace, tmp_path: Path) -> None:
    told = refused(variant(dense, tmp_path, dense.flat, base_digest="0" * 64))
    assert "another base" in told


def test_a_step_that_was_not_committed_is_not_merged(dense: SimpleNamespace, tmp_path: Path) -> None:
    train = tmp_path / "train"
    shutil.copytree(dense.adapter, train)
    shutil.copytree(train / "checkpoints" / "3", train / "checkpoints" / "7")
    (train / "checkpoints" / "7" / "commit_success.txt").unlink()
    config = merging.config(dense.base, train, tmp_path / "out", tmp_path / "work")
    assert "Committed steps: 3" in refused(config.model_copy(update={"step": 7}))
    assert publish.merge(config).adapter.step == 3
    (train / "checkpoints" / "7" / "commit_success.txt").touch()
    again = config.model_copy(update={"output": f"file://{tmp_path}/newer"})
    assert publish.merge(again).adapter.step == 7


@pytest.mark.parametrize("below", ["checkpoints", "checkpoints/3"])
def test_a_path_inside_a_training_output_is_told_its_output(
    below: str, dense: SimpleNamespace, tmp_path: Path
) -> None:
    text = refused(merging.config(dense.base, dense.adapter / below, tmp_path / "out", tmp_path / "work"))
    assert f"did you mean file://{dense.adapter}?" in text


@pytest.mark.parametrize("content", ["{", None])
def test_a_base_whose_configuration_is_damaged_is_named_once(
    content: str | None, dense: SimpleNamespace, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(dense.base, base)
    (base / "config.json").unlink()
    if content:
        (base / "config.json").write_text(content)
    text = refused(merging.config(base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert text.startswith(f"{base}/config.json: ")


@pytest.mark.parametrize("content", ["{", "[]", '{"tree_metadata": 3}', "0"])
@pytest.mark.parametrize("where", ["_CHECKPOINT_METADATA", "adapter/_METADATA", "state/metadata"])
def test_a_checkpoint_with_a_record_that_is_none_is_named(
    where: str, content: str, dense: SimpleNamespace, tmp_path: Path
) -> None:
    train = tmp_path / "train"
    shutil.copytree(dense.adapter, train)
    (train / "checkpoints/3" / where).write_text(content)
    config = merging.config(dense.base, train, tmp_path / "out", tmp_path / "work")
    assert f"file://{train}/checkpoints" in refused(config)


@pytest.mark.parametrize("size", ["inf", "nan", "5XB", "", "GB"])
def test_a_shard_size_that_is_none_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--base", "b", "--adapter", "a", "--output", "o", "--max-shard-size", size]
    assert command.main(options) == 2
    assert "--max-shard-size: must be a number of bytes, or like 5GB" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["state/metadata", "adapter/_METADATA", "adapter/manifest.ocdbt"])
def test_a_damaged_checkpoint_is_named_where_the_user_has_it(
    where: str, dense: SimpleNamespace, tmp_path: Path
) -> None:
    train = tmp_path / "train"
    shutil.copytree(dense.adapter, train)
    (train / "checkpoints/3" / where).write_text("{")
    text = refused(merging.config(dense.base, train, tmp_path / "out", tmp_path / "work"))
    assert str(tmp_path / "work") not in text
    assert f"file://{train}/checkpoints/3" in text


def test_without_a_committed_step_the_refusal_says_so(dense: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "train" / "checkpoints").mkdir(parents=True)
    told = refused(merging.config(dense.base, tmp_path / "train", tmp_path / "out", tmp_path / "work"))
    assert "no committed checkpoint" in told


def broken(dense: SimpleNamespace, tmp_path: Path) -> tuple[Path, Path]:
    base = tmp_path / "base"
    shutil.copytree(dense.base, base)
    return base, sorted(base.glob("*.safetensors"))[1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def stretch(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


def lie(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**40) + path.read_bytes()[8:])


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9:12] = b"\xff\xff\xff"
    path.write_bytes(bytes(data))


def absent(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut, stretch, lie, garble, absent])
def test_a_damaged_base_file_is_named(
    damage: Callable[[Path], None], dense: SimpleNamespace, tmp_path: Path
) -> None:
    base, path = broken(dense, tmp_path)
    damage(path)
    told = refused(merging.config(base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert path.name in told


def test_an_index_that_lies_is_named(dense: SimpleNamespace, tmp_path: Path) -> None:
    base, path = broken(dense, tmp_path)
    index = base / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    name = next(n for n, f in data["weight_map"].items() if f == path.name)
    data["weight_map"][name] = sorted(set(data["weight_map"].values()))[0]
    index.write_text(json.dumps(data))
    told = refused(merging.config(base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert name in told


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn])
def test_a_quantized_weight_is_not_merged_into(dtype: Any, dense: SimpleNamespace, tmp_path: Path) -> None:
    base, path = broken(dense, tmp_path)
    data = load_file(path)
    name = next(n for n in data if n.endswith("up_proj.weight"))
    if dtype is np.int8:
        data[name] = data[name].astype(dtype)
        save_file(data, path, {"format": "pt"})
    else:  # the library's numpy side does not write it: the header is patched
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        begin, end = header[name]["data_offsets"]
        blocks, position = [], 0
        for key in sorted(
            (k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"]
        ):
            start, stop = header[key]["data_offsets"]
            block = raw[8 + length + start : 8 + length + stop]
            if key == name:
                block = block[: np.prod(header[key]["shape"])]
                header[key]["dtype"] = "F8_E4M3"
            header[key]["data_offsets"] = [position, position + len(block)]
            position += len(block)
            blocks.append(block)
        assert end > begin
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))
    merging.save(tmp_path / "train", base, dense.flat)
    told = refused(merging.config(base, tmp_path / "train", tmp_path / "out", tmp_path / "work"))
    assert name in told and "quantized" in told and "unquantized" in told


@pytest.mark.parametrize("target", ["base", "train", ""])
def test_an_output_over_an_input_is_refused(target: str, dense: SimpleNamespace, tmp_path: Path) -> None:
    top = tmp_path / "top"
    shutil.copytree(dense.base, top / "base")
    shutil.copytree(dense.adapter, top / "train")
    before = merging.content(top)
    config = merging.config(top / "base", top / "train", top / target if target else top, tmp_path / "work")
    with pytest.raises(UserError, match="overwrite"):
        publish.merge(config)
    assert merging.content(top) == before


def test_an_output_with_somebody_elses_files_is_refused(dense: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    told = refused(merging.config(dense.base, dense.adapter, tmp_path / "out", tmp_path / "work"))
    assert "thesis.txt" in told
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_a_sum_too_large_for_float16_is_named(dense: SimpleNamespace, tmp_path: Path) -> None:
    flat = {k: v * 3000 if k.startswith("layers.0.mlp.up_proj") else v for k, v in dense.flat.items()}
    merging.save(tmp_path / "train", dense.base, flat)
    config = merging.config(
        dense.base, tmp_path / "train", tmp_path / "out", tmp_path / "work", dtype="float16"
    )
    assert "layers.0.mlp.up_proj" in refused(config)


def test_the_command_takes_paths_of_this_machine_as_well_as_uris(tmp_path: Path, monkeypatch: Any) -> None:
    from tunewright_workloads.merge.__main__ import config_of, parser

    monkeypatch.chdir(tmp_path)
    asked = ["--base", "b", "--adapter", "../a", "--output", "o p"]
    config = config_of(parser().parse_args(asked), str(tmp_path))
    assert config.model.source == f"file://{tmp_path}/b"
    assert (config.adapter, config.output) == (f"file://{tmp_path.parent}/a", f"file://{tmp_path}/o p")
