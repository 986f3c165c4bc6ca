from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright_workloads.contract.configs import TARGETS
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.models import MODELS
from tunewright_workloads.gemma import architecture, names, tiny
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.checkpoint import Checkpoint


def arch(variant: str) -> Architecture:
    return architecture.parse(tiny.config(variant, False))


def of_catalog(name: str) -> Architecture:
    """A catalog entry as an architecture: no checkpoint of these is at hand in a test."""
    spec = MODELS[name]
    return Architecture(
        class_name=architecture.CLASSES[0],
        layers=spec.layers,
        globals=tuple(spec.is_global(i) for i in range(spec.layers)),
        embed=spec.embed,
        hidden=spec.hidden,
        heads=spec.heads,
        local_kv_heads=spec.local_kv_heads,
        global_kv_heads=spec.global_kv_heads,
        head_dim=spec.head_dim,
        global_head_dim=spec.global_head_dim,
        window=spec.window,
        vocab=spec.vocab,
        k_eq_v=spec.k_eq_v,
        kv_shared_layers=spec.kv_shared_layers,
        wide=spec.wide_hidden is not None,
        ple=spec.ple,
    )


def test_the_31b_has_the_tensors_that_its_checkpoint_has() -> None:
    tensors = names.tensors(of_catalog("gemma-4-31b"))
    assert len(tensors) == 832
    assert abs(sum(int(np.prod(s)) for s in tensors.values()) / 1e9 - 30.697) < 0.01
    assert len(names.leaves(of_catalog("gemma-4-31b"))) == 782
    assert "layers.5.self_attn.v_proj.weight" not in tensors
    assert tensors["layers.5.self_attn.k_proj.weight"] == (4 * 512, 5376)


@pytest.mark.parametrize("name", ["gemma-4-31b", "gemma-4-e2b", "gemma-4-e4b", "gemma-4-tiny"])
@pytest.mark.parametrize("targets", [TARGETS, ("q_proj",), ("k_proj", "v_proj"), ("gate_proj", "o_proj")])
def test_the_catalog_counts_the_adapters_that_there_are(name: str, targets: tuple[str, ...]) -> None:
    count = 0
    for projection in names.projections(of_catalog(name)):
        if set(projection.targets) & set(targets):
            count += sum(int(np.prod(shape)) for shape in projection.shapes(64))
    assert count == MODELS[name].lora_params(64, targets)


@pytest.mark.parametrize("variant", ["dense", "ple"])
def test_every_projection_changes_tensors_of_the_checkpoint_and_none_twice(variant: str) -> None:
    shapes = names.tensors(arch(variant))
    seen: list[str] = []
    for projection in names.projections(arch(variant)):
        a, b = (np.random.default_rng(0).normal(size=s) for s in projection.shapes(3))
        deltas = projection.delta(a, b)
        assert [d.shape for d in deltas] == [shapes[w] for w in projection.weights]
        assert all(d.dtype == np.float32 for d in deltas)
        seen += projection.weights
    assert len(seen) == len(set(seen))
    matrices = {n for n in shapes if n.endswith("_proj.weight") and ("self_attn" in n or "mlp" in n)}
    assert set(seen) == matrices


@pytest.mark.parametrize(
    ("path", "formula"),
    [
        ("layers.0.attn.q_einsum", lambda a, b: [np.einsum("dr,rnh->nhd", a, b).reshape(-1, 128)]),
        ("layers.3.attn.k_einsum", lambda a, b: [np.einsum("dr,rnh->nhd", a, b).reshape(-1, 128)]),
        (
            "layers.0.attn.kv_einsum",
            lambda a, b: [np.einsum("dr,rnh->nhd", a, b[:, i]).reshape(-1, 128) for i in (0, 1)],
        ),
        ("layers.0.attn.attn_vec_einsum", lambda a, b: [np.einsum("nhr,rd->dnh", a, b).reshape(128, -1)]),
        ("layers.0.mlp.down_proj", lambda a, b: [(a @ b).T]),
    ],
)
def test_a_delta_is_the_einsum_of_its_module(path: str, formula: object) -> None:
    projection = next(p for p in names.projections(arch("dense")) if p.path == path)
    a, b = (np.random.default_rng(1).normal(size=s).astype(np.float32) for s in projection.shapes(5))
    for got, want in zip(projection.delta(a, b), formula(a, b), strict=True):  # type: ignore[operator]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_adapter_of_another_shape_is_refused_by_its_path() -> None:
    projection = names.projections(arch("dense"))[0]
    a, b = (np.zeros(s) for s in projection.shapes(4))
    with pytest.raises(ValueError, match=r"layers\.0\.attn\.q_einsum"):
        projection.delta(a, b[:3])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_window_of_any_leaf_is_that_window_of_the_whole(data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from(list(names.leaves(arch("ple")).values())))
    shapes = names.tensors(arch("ple"))
    sources = {n: np.arange(np.prod(shapes[n])).reshape(shapes[n]) for n in leaf.sources}
    window = []
    for size in leaf.shape:
        start = data.draw(st.integers(0, size - 1))
        window.append(slice(start, data.draw(st.integers(start + 1, size))))
    whole = leaf.read(sources.__getitem__, (slice(None),) * len(leaf.shape))
    assert whole.shape == leaf.shape
    np.testing.assert_array_equal(leaf.read(sources.__getitem__, tuple(window)), whole[tuple(window)])


@pytest.mark.parametrize(
    ("path", "formula"),
    [
        ("layers.0.attn.q_einsum.w", lambda t: t.reshape(4, 32, 128).transpose(0, 2, 1)),
        ("layers.0.attn.attn_vec_einsum.w", lambda t: t.reshape(128, 4, 32).transpose(1, 2, 0)),
        ("layers.0.mlp.up_proj.kernel", lambda t: t.T),
        ("embedder.per_layer_input_embedding", lambda t: t.reshape(1024, 6, 16)),
        ("embedder.per_layer_model_projection.w", lambda t: t.T.reshape(128, 6, 16)),
    ],
)
def test_a_leaf_is_its_tensor_in_tunix_order(path: str, formula: object) -> None:
    leaf = names.leaves(arch("ple"))[path]
    tensor = np.random.default_rng(2).normal(size=names.tensors(arch("ple"))[leaf.sources[0]])
    got = leaf.read(lambda _: tensor, (slice(None),) * len(leaf.shape))
    np.testing.assert_array_equal(got, formula(tensor))  # type: ignore[operator]


def test_missing_unexpected_and_misshaped_tensors_are_all_named(checkpoints: dict[str, Path]) -> None:
    shapes = dict(Checkpoint.open(checkpoints["dense"]).shapes)
    prefix = "model.language_model."
    del shapes[f"{prefix}layers.1.self_attn.q_norm.weight"]
    shapes[f"{prefix}layers.9.mlp.up_proj.weight"] = (1, 1)
    shapes[f"{prefix}layers.3.self_attn.v_proj.weight"] = (64, 128)
    shapes[f"{prefix}norm.weight"] = (64,)
    with pytest.raises(UserError) as caught:
        names.check(architecture.read(checkpoints["dense"]), shapes, "here")
    text = caught.value.text()
    assert "layers.1.self_attn.q_norm.weight: is missing" in text
    assert "layers.9.mlp.up_proj.weight: is not a tensor" in text
    assert "layers.3.self_attn.v_proj.weight: is not a tensor" in text
    assert "norm.weight: must have shape [128] (got [64])" in text
    assert len(caught.value.faults) == 4


def test_what_google_ships_and_transformers_drops_may_be_there() -> None:
    shapes = {f"model.{n}": s for n, s in names.tensors(arch("ple")).items()}
    shapes |= {f"model.{n}": (64, 128) for n in names.optional(arch("ple"))}
    shapes["model.vision_tower.anything"] = (1,)
    assert names.check(arch("ple"), shapes, "here") == "model."


def test_a_directory_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="no Gemma 4 text decoder"):
        names.text_prefix(["transformer.wte.weight"])
