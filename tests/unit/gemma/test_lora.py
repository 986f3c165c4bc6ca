from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from support import gemma
from tunewright_workloads.contract.configs import TARGETS, AdapterConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import architecture, load, lora, names

RANK, ALPHA = 4, 6.0


def base(directory: Path) -> Any:
    return load.load(directory, mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32")


def adapted(directory: Path, seed: int = 0, **options: Any) -> Any:
    adapter = AdapterConfig(rank=RANK, alpha=ALPHA, **options)
    return lora.apply(base(directory), adapter, seed=seed, mesh=gemma.mesh())


def filled(tree: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Every leaf by path, B too, with random values."""
    draw = np.random.default_rng(seed)
    return {p: draw.normal(size=x.shape).astype(np.float32) * 0.05 for p, x in lora.flatten(tree)}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in flat.items():
        *parts, last = path.split(".")
        here = result
        for part in parts:
            here = here.setdefault(part, {})
        here[last] = value
    return result


@pytest.mark.parametrize("name", ["dense", "ple"])
def test_every_adapter_key_belongs_to_one_projection(name: str, checkpoints: dict[str, Path]) -> None:
    arch = architecture.read(checkpoints[name])
    have = {path: tuple(x.shape) for path, x in lora.flatten(lora.tree(adapted(checkpoints[name])))}
    want = {
        f"{p.path}.{leaf}": shape
        for p in names.projections(arch)
        for leaf, shape in zip((p.a, p.b), p.shapes(RANK), strict=True)
    }
    assert have == want


@pytest.mark.parametrize("name", ["dense", "ple"])
def test_base_plus_deltas_is_the_adapted_model(name: str, checkpoints: dict[str, Path]) -> None:
    arch, on, ids = architecture.read(checkpoints[name]), gemma.mesh(), gemma.tokens(2, 48)
    model = adapted(checkpoints[name])
    flat = filled(lora.tree(model))
    lora.restore(model, nested(flat))
    with_adapters = gemma.tunix_logits(model, ids, on)

    merged = base(checkpoints[name])
    leaves = names.leaves(arch)
    by_source = {source: leaf for leaf in leaves.values() for source in leaf.sources}
    state = nnx.state(merged)
    values = {load.dotted(path): np.array(v.get_value()) for path, v in nnx.to_flat_state(state)}
    untouched = gemma.tunix_logits(merged, ids, on)
    for projection in names.projections(arch):
        deltas = projection.delta(
            flat[f"{projection.path}.{projection.a}"], flat[f"{projection.path}.{projection.b}"]
        )
        leaf = by_source[projection.weights[0]]
        sources = dict(zip(projection.weights, deltas, strict=True))
        change = leaf.read(sources.__getitem__, (slice(None),) * len(leaf.shape))
        values[leaf.path] = values[leaf.path] + np.float32(ALPHA / RANK) * change
    nnx.update(
        merged,
        nnx.from_flat_state(
            [
                (path, v.replace(jax.numpy.asarray(values[load.dotted(path)])))
                for path, v in nnx.to_flat_state(state)
            ]
        ),
    )
    np.testing.assert_allclose(gemma.tunix_logits(merged, ids, on), with_adapters, atol=2e-4)
    assert np.abs(with_adapters - untouched).max() > 0.1


def test_a_fresh_adapter_changes_nothing_and_is_float32(checkpoints: dict[str, Path]) -> None:
    on, ids = gemma.mesh(), gemma.tokens(1, 16)
    model = adapted(checkpoints["dense"])
    np.testing.assert_array_equal(
        gemma.tunix_logits(model, ids, on), gemma.tunix_logits(base(checkpoints["dense"]), ids, on)
    )
    leaves = dict(lora.flatten(lora.tree(model)))
    assert {x.dtype.name for x in leaves.values()} == {"float32"}
    assert all(not np.any(x) for path, x in leaves.items() if path.endswith("_b"))
    a = np.asarray(leaves["layers.0.mlp.up_proj.kernel_lora_a"])
    assert np.abs(a).max() <= (6 / 128) ** 0.5 and np.abs(a).max() > 0.9 * (6 / 128) ** 0.5
    o = np.asarray(leaves["layers.3.attn.attn_vec_einsum.w_lora_a"])
    assert np.abs(o).max() <= (6 / 256) ** 0.5


def test_the_adapter_is_the_seeds_and_differs_by_module(checkpoints: dict[str, Path]) -> None:
    one, same, other = (
        dict(lora.flatten(lora.tree(adapted(checkpoints["dense"], seed)))) for seed in (1, 1, 2)
    )
    path = "layers.0.attn.q_einsum.w_lora_a"
    np.testing.assert_array_equal(one[path], same[path])
    assert not np.array_equal(one[path], other[path])
    assert not np.array_equal(one[path], one["layers.1.attn.q_einsum.w_lora_a"])


@pytest.mark.parametrize("targets", [("q_proj",), ("k_proj", "v_proj"), ("o_proj", "down_proj"), TARGETS])
def test_only_the_asked_targets_get_adapters(targets: tuple[str, ...], checkpoints: dict[str, Path]) -> None:
    arch = architecture.read(checkpoints["dense"])
    have = {
        path.rsplit(".", 1)[0]
        for path, _ in lora.flatten(lora.tree(adapted(checkpoints["dense"], targets=targets)))
    }
    assert have == {p.path for p in names.projections(arch) if set(p.targets) & set(targets)}


def test_half_of_a_fused_projection_is_refused(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="name both or neither"):
        adapted(checkpoints["dense"], targets=("q_proj", "v_proj"))


def test_a_target_that_matches_nothing_is_a_failure(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lora.qwix.apply_lora_to_model

    def misses_the_global_layer(model: Any, provider: Any, **inputs: Any) -> Any:
        for number, rule in enumerate(provider._rules):
            if rule.module_path.endswith("/k_einsum"):
                provider._rules[number] = replace(rule, module_path="renamed")
        return real(model, provider, **inputs)

    monkeypatch.setattr(lora.qwix, "apply_lora_to_model", misses_the_global_layer)
    with pytest.raises(UserError, match=r"got no adapter on layers\.3\.attn\.k_einsum"):
        adapted(checkpoints["dense"])


def test_dropout_is_off_until_it_is_turned_on_and_off_again_in_evaluation(
    checkpoints: dict[str, Path],
) -> None:
    on, ids = gemma.mesh(), gemma.tokens(1, 16)
    model = adapted(checkpoints["dense"], dropout=0.5)
    lora.restore(model, nested(filled(lora.tree(model))))
    still = gemma.tunix_logits(model, ids, on)
    np.testing.assert_array_equal(gemma.tunix_logits(model, ids, on), still)
    lora.dropout(model, nnx.Rngs(dropout=0))
    assert np.abs(gemma.tunix_logits(model, ids, on) - still).max() > 0.01
    lora.dropout(model, None)
    np.testing.assert_array_equal(gemma.tunix_logits(model, ids, on), still)


def test_a_restored_adapter_is_the_saved_one(checkpoints: dict[str, Path]) -> None:
    model = adapted(checkpoints["ple"])
    flat = filled(lora.tree(model))
    lora.restore(model, nested(flat))
    back = dict(lora.flatten(lora.tree(model)))
    assert set(back) == set(flat)
    for path, value in flat.items():
        np.testing.assert_array_equal(back[path], value)


def test_restoring_another_adapter_names_what_differs_and_changes_nothing(
    checkpoints: dict[str, Path],
) -> None:
    model = adapted(checkpoints["dense"])
    before = {p: np.asarray(x) for p, x in lora.flatten(lora.tree(model))}
    flat = filled(lora.tree(model))
    del flat["layers.2.mlp.up_proj.kernel_lora_b"]
    flat["layers.7.mlp.up_proj.kernel_lora_b"] = np.zeros((1,))
    flat["layers.0.attn.q_einsum.w_lora_a"] = np.zeros((128, 9))
    with pytest.raises(UserError) as caught:
        lora.restore(model, nested(flat), "here")
    text = caught.value.text()
    assert "here: layers.2.mlp.up_proj.kernel_lora_b: is missing" in text
    assert "here: layers.7.mlp.up_proj.kernel_lora_b: is not an adapter" in text
    assert "here: layers.0.attn.q_einsum.w_lora_a: must have shape [128, 4] (got [128, 9])" in text
    for path, value in lora.flatten(lora.tree(model)):
        np.testing.assert_array_equal(value, before[path])
