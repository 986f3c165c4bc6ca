"""Which PEFT adapters are merged, and which are refused with the name of what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import merging
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.merge import publish


@pytest.fixture
def adapter(dense: SimpleNamespace, tmp_path: Path) -> Path:
    config = merging.config(dense.base, dense.adapter, tmp_path / "peft", tmp_path / "export")
    publish.export(config, config.output)
    return tmp_path / "peft"


def merged(dense: SimpleNamespace, adapter: Path) -> dict[str, np.ndarray]:
    top = adapter.parent
    publish.merge(merging.config(dense.base, adapter, top / "out", top / "work", dtype="keep"))
    return merging.tensors(top / "out")


def settings(adapter: Path, **changed: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def weights(adapter: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    path = adapter / "adapter_model.safetensors"
    data = load_file(path)
    change(data)
    save_file(data, path, {"format": "pt"})


def key(data: dict[str, np.ndarray], end: str) -> str:
    return next(n for n in data if n.endswith(end))


def test_an_export_has_v_proj_on_layers_where_k_and_v_are_one(dense: SimpleNamespace, adapter: Path) -> None:
    data = load_file(adapter / "adapter_model.safetensors")
    for side in ("A", "B"):
        k = data[key(data, f"layers.3.self_attn.k_proj.lora_{side}.weight")]
        v = data[key(data, f"layers.3.self_attn.v_proj.lora_{side}.weight")]
        np.testing.assert_array_equal(k, v)
    assert not any("layers.3.self_attn.v_proj" in n for n in merging.tensors(dense.base))


def test_what_was_exported_merges_as_the_checkpoint_does(dense: SimpleNamespace, adapter: Path) -> None:
    want = merging.expected(dense.base, dense.flat, 2.0, None)
    assert {n: a.tobytes() for n, a in merged(dense, adapter).items()} == {
        n: a.tobytes() for n, a in want.items()
    }


def test_names_of_the_text_only_class_find_the_multimodal_base(dense: SimpleNamespace, adapter: Path) -> None:
    def rename(data: dict[str, np.ndarray]) -> None:
        for name in list(data):
            data[name.replace("model.language_model.", "model.")] = data.pop(name)

    before = merged(dense, adapter)
    weights(adapter, rename)
    again = adapter.parent / "again"
    publish.merge(merging.config(dense.base, adapter, again, adapter.parent / "work2", dtype="keep"))
    assert {n: a.tobytes() for n, a in merging.tensors(again).items()} == {
        n: a.tobytes() for n, a in before.items()
    }


def test_bfloat16_factors_are_widened_exactly(dense: SimpleNamespace, adapter: Path) -> None:
    import ml_dtypes

    weights(adapter, lambda d: d.update({n: a.astype(ml_dtypes.bfloat16) for n, a in d.items()}))
    got = merged(dense, adapter)
    flat = {n: a.astype(ml_dtypes.bfloat16).astype(np.float32) for n, a in dense.flat.items()}
    want = merging.expected(dense.base, flat, 2.0, None)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: settings(p, use_dora=True), "use_dora"),
        (lambda p: settings(p, bias="all"), "bias"),
        (lambda p: settings(p, modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda p: settings(p, peft_type="IA3"), "peft_type"),
        (lambda p: settings(p, fan_in_fan_out=True), "fan_in_fan_out"),
        (lambda p: settings(p, r="many"), "adapter_config.json"),
        (lambda p: (p / "adapter_config.json").write_text("{"), "adapter_config.json"),
        (lambda p: (p / "adapter_model.safetensors").unlink(), "adapter_model.safetensors"),
        (lambda p: weights(p, lambda d: d.pop(key(d, "layers.0.mlp.up_proj.lora_B.weight"))), "up_proj.lora_A.weight: has no lora_B"),
        (lambda p: weights(p, lambda d: d.__setitem__("base_model.model.lm_head.weight", np.zeros(2, np.float32))), "lm_head.weight"),
        (lambda p: weights(p, lambda d: d.__setitem__(key(d, "layers.0.mlp.up_proj.lora_B.weight"), np.zeros((7, 4), np.float32))), "up_proj"),
        (lambda p: weights(p, lambda d: d.__setitem__(key(d, "layers.3.self_attn.v_proj.lora_A.weight"), np.zeros((4, 128), np.float32))), "one projection for K and V"),
        (lambda p: weights(p, lambda d: d.update({n.replace("layers.0.", "layers.9."): d.pop(n) for n in list(d) if "layers.0." in n})), "layers.9"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_named(
    damage: Callable[[Path], object], says: str, dense: SimpleNamespace, adapter: Path
) -> None:
    damage(adapter)
    with pytest.raises(UserError) as error:
        merged(dense, adapter)
    assert says in str(error.value)
    assert not list((adapter.parent / "out").glob("*.safetensors"))


def test_a_merge_writes_the_adapter_beside_the_model_and_again_when_it_is_gone(
    dense: SimpleNamespace, adapter: Path, tmp_path: Path
) -> None:
    config = merging.config(
        dense.base,
        dense.adapter,
        tmp_path / "out",
        tmp_path / "work",
        adapter_output=f"file://{tmp_path}/beside",
    )
    publish.merge(config)
    assert merging.content(tmp_path / "beside") == merging.content(adapter)
    (tmp_path / "beside" / "adapter_config.json").unlink()
    publish.merge(config)
    assert merging.content(tmp_path / "beside") == merging.content(adapter)
