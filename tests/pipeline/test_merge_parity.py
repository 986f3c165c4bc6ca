"""A merged model in real transformers and PEFT (PyTorch, float32, CPU), against base + adapter in JAX."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from support import gemma, merging
from tunewright_workloads.contract.configs import TARGETS, AdapterConfig
from tunewright_workloads.gemma import load, lora, tiny
from tunewright_workloads.merge import probe, publish

pytestmark = pytest.mark.pipeline
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
peft = pytest.importorskip("peft", reason="PEFT is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VARIANTS = ("dense", "dense-text", "dense-single", "ple", "ple-saved")
"""-text: the text-only class, names below `model.`; -single: one safetensors file; -saved: what
transformers' own save_pretrained wrote (no K and V for kv-shared layers)."""


def made(top: Path, variant: str) -> SimpleNamespace:
    kind, _, form = variant.partition("-")
    base = top / "base"
    tiny.write(base, variant=kind, multimodal=form != "text")
    if form == "single":
        everything = merging.tensors(base)
        for path in base.glob("*.safetensors*"):
            path.unlink()
        save_file(everything, base / "model.safetensors", {"format": "pt"})
    if form == "saved":
        gemma.reference(base).save_pretrained(top / "saved")
        for path in base.glob("*.safetensors*"):
            path.unlink()
        for path in (top / "saved").glob("*.safetensors*"):
            shutil.copy(path, base)
    flat = merging.arrays(base, rank=4)
    merging.save(top / "train", base, flat, targets=list(TARGETS))
    publish.merge(merging.config(base, top / "train", top / "merged", top / "work", dtype="keep"))
    return SimpleNamespace(top=top, base=base, train=top / "train", merged=top / "merged", flat=flat)


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return made(tmp_path_factory.mktemp(request.param), request.param)


def adapted_logits(case: SimpleNamespace, ids: np.ndarray) -> np.ndarray:
    """Base + adapter as the trainer runs it."""
    mesh = gemma.mesh()
    model = load.load(case.base, mesh=mesh, param_dtype="float32", compute_dtype="float32")
    with mesh:
        model = lora.apply(model, AdapterConfig(rank=4, alpha=8.0), seed=0, mesh=mesh)
        lora.restore(model, merging.nested(case.flat))
    return gemma.tunix_logits(model, ids, mesh)


def torch_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(input_ids=torch.tensor(ids, dtype=torch.long)).logits)


def test_transformers_loads_the_merged_model_and_computes_base_plus_adapter(case: SimpleNamespace) -> None:
    ids = gemma.tokens(2, 48)
    want, got = adapted_logits(case, ids), gemma.reference_logits(case.merged, ids)
    assert np.abs(got - want).max() <= 1e-3
    assert np.abs(gemma.reference_logits(case.base, ids) - want).max() > 0.1  # the adapter does something
    auto = transformers.AutoModelForCausalLM.from_pretrained(case.merged, dtype=torch.float32).eval()
    assert np.abs(torch_logits(auto, ids) - want).max() <= 1e-3


def test_peft_loads_the_exported_adapter_and_computes_the_same(case: SimpleNamespace, tmp_path: Path) -> None:
    config = merging.config(case.base, case.train, tmp_path / "peft", tmp_path / "work")
    publish.export(config, config.output)
    model = peft.PeftModel.from_pretrained(gemma.reference(case.base), tmp_path / "peft").eval()
    ids = gemma.tokens(2, 48)
    assert np.abs(torch_logits(model, ids) - adapted_logits(case, ids)).max() <= 1e-3


def test_an_exported_adapter_merges_to_the_same_bytes(case: SimpleNamespace, tmp_path: Path) -> None:
    config = merging.config(case.base, case.train, tmp_path / "peft", tmp_path / "work")
    publish.export(config, config.output)
    publish.merge(
        merging.config(case.base, tmp_path / "peft", tmp_path / "again", tmp_path / "work2", dtype="keep")
    )
    got, want = merging.tensors(tmp_path / "again"), merging.tensors(case.merged)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_that_peft_made_merges_to_what_peft_merges(
    case: SimpleNamespace, rslora: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=rslora, init_lora_weights=False, rank_pattern={"q_proj": 2},
        alpha_pattern={"layers.1.mlp.up_proj": 3}, target_modules=r".*language_model\..*_proj",
    )  # fmt: skip
    if case.base.parent.name.startswith("dense-text"):
        config.target_modules = r"model\.layers\..*_proj"
    model = peft.get_peft_model(gemma.reference(case.base), config)
    model.save_pretrained(tmp_path / "peft")
    publish.merge(
        merging.config(case.base, tmp_path / "peft", tmp_path / "merged", tmp_path / "work", dtype="keep")
    )
    model.merge_and_unload().save_pretrained(tmp_path / "theirs")
    got, theirs = merging.tensors(tmp_path / "merged"), merging.tensors(tmp_path / "theirs")
    base = merging.tensors(case.base)
    assert got.keys() == base.keys()
    changed = 0
    for name, array in theirs.items():
        np.testing.assert_allclose(
            got[name].astype(np.float64), array.astype(np.float64), rtol=0, atol=2e-6, err_msg=name
        )
        changed += not np.array_equal(got[name], base[name])
    assert changed >= 7


@pytest.mark.parametrize("case", ["dense"], indirect=True)
def test_the_probe_process_finds_a_merge_that_is_right_and_one_that_is_not(case: SimpleNamespace) -> None:
    step = case.train / "checkpoints" / "3"
    right, wrong = probe.run(case.merged, case.base, step), probe.run(case.base, case.base, step)
    assert right is not None and right.difference is not None
    assert right.difference.fault("F32") is None
    assert right.difference.effect > 100 * right.difference.mean
    assert wrong is not None and wrong.difference is not None
    assert "does not compute" in str(wrong.difference.fault("F32"))
