from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from support import gemma
from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import architecture, load, lora, stages, tiny
from tunewright_workloads.gemma.stages import Stage

ADAPTER = AdapterConfig(rank=3, alpha=3)


def arch(variant: str, groups: int = 1) -> Any:
    return architecture.parse(tiny.config(variant, False, groups=groups))


def like(layers: int, every: int, shared: int) -> Any:
    pattern = tuple((i + 1) % every == 0 for i in range(layers))
    return replace(arch("dense"), layers=layers, globals=pattern, kv_shared_layers=shared)


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (like(60, 6, 0), [Stage(0, 10, 6)]),  # 31B
        (like(35, 5, 20), [Stage(0, 2, 5), Stage(10, 1, 5), Stage(15, 4, 5)]),  # E2B
        (like(42, 6, 18), [Stage(0, 3, 6), Stage(18, 1, 6), Stage(24, 3, 6)]),  # E4B
        (like(4, 4, 0), [Stage(0, 1, 4)]),
        (like(7, 7, 0), [Stage(0, 1, 7)]),
        (like(3, 1, 0), [Stage(0, 3, 1)]),
    ],
)
def test_the_layers_are_these_scans(shape: Any, want: list[Stage]) -> None:
    assert stages.stages(shape) == want
    covered = [s.layer(r, p) for s in want for r in range(s.count) for p in range(s.period)]
    assert covered == list(range(shape.layers))


@pytest.mark.parametrize("variant", ["dense", "ple"])
def test_the_stacked_base_is_tunix_parameters(variant: str, tmp_path: Path) -> None:
    tiny.write(tmp_path, variant=variant, groups=2)  # type: ignore[arg-type]
    model = load.load(tmp_path, mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32")
    shape, base = stages.load(tmp_path, mesh=gemma.mesh(), dtype="float32")
    seen = 0
    for stage, positions in zip(stages.stages(shape), base["stages"], strict=True):
        for position, tree in enumerate(positions):
            for repetition in range(stage.count):
                layer = model.layers[stage.layer(repetition, position)]
                if hasattr(layer.attn, "kv_einsum"):
                    both = layer.attn.kv_einsum.w.get_value()
                    np.testing.assert_array_equal(tree["attn.k_einsum.w"][repetition], both[0])
                    np.testing.assert_array_equal(tree["attn.v_einsum.w"][repetition], both[1])
                np.testing.assert_array_equal(
                    tree["mlp.down_proj.kernel"][repetition], layer.mlp.down_proj.kernel.get_value()
                )
                np.testing.assert_array_equal(
                    tree["attn.attn_vec_einsum.w"][repetition], layer.attn.attn_vec_einsum.w.get_value()
                )
                seen += 1
    assert seen == shape.layers
    count = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(base))
    from flax import nnx

    assert count == sum(x.size for x in jax.tree.leaves(nnx.state(model)))


@pytest.mark.parametrize("variant", ["dense", "ple"])
def test_a_fresh_adapter_is_qwixs(variant: str, checkpoints: dict[str, Path]) -> None:
    model = load.load(checkpoints[variant], mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32")
    want = dict(lora.flatten(lora.tree(lora.apply(model, ADAPTER, seed=9, mesh=gemma.mesh()))))
    got = dict(
        lora.flatten(
            stages.unstack(arch(variant), stages.init(arch(variant), ADAPTER, seed=9, mesh=gemma.mesh()))
        )
    )
    assert set(got) == set(want)
    for path, value in want.items():
        np.testing.assert_array_equal(got[path], value)


@pytest.mark.parametrize("targets", [("q_proj",), ("v_proj",), ("down_proj", "o_proj")])
def test_stacking_and_unstacking_an_adapter_gives_it_back(targets: tuple[Any, ...]) -> None:
    shape = arch("ple", 2)
    adapter = AdapterConfig(rank=2, alpha=2, targets=targets)
    fresh = stages.init(shape, adapter, seed=1, mesh=gemma.mesh())
    tree = stages.unstack(shape, fresh)
    back = stages.stack(shape, tree, gemma.mesh())
    assert jax.tree.structure(back) == jax.tree.structure(fresh)
    for one, two in zip(jax.tree.leaves(back), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.sharding == two.sharding


def test_an_adapter_that_lacks_a_layer_or_has_one_too_many_is_refused() -> None:
    shape = arch("dense", 2)
    tree = stages.unstack(shape, stages.init(shape, ADAPTER, seed=1, mesh=gemma.mesh()))
    del tree["layers"]["5"]["mlp"]["up_proj"]["kernel_lora_a"]
    tree["layers"]["9"] = {"mlp": {"up_proj": {"kernel_lora_a": np.zeros((1, 1))}}}
    with pytest.raises(UserError) as caught:
        stages.stack(shape, tree, gemma.mesh())
    text = caught.value.text()
    assert "layers.5.mlp.up_proj.kernel_lora_a: is missing" in text
    assert "layers.9.mlp.up_proj.kernel_lora_a: is not an adapter" in text
