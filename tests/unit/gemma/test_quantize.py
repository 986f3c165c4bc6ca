from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support import gemma
from tunewright_workloads.gemma import quantize, stages
from tunewright_workloads.gemma.quantize import Quantized

KINDS = ("int8", "nf4")


def there_and_back(weights: np.ndarray, kind: Any) -> np.ndarray:
    top = quantize.scales(weights)
    value = Quantized(jnp.asarray(quantize.codes(weights, top, kind)), jnp.asarray(top), kind)
    assert value.codes.shape == quantize.codes_shape(weights.shape, kind)
    assert value.scales.shape == quantize.scales_shape(weights.shape)
    return np.asarray(quantize.dequantize(value, jnp.dtype("float32")))


@pytest.mark.parametrize(("kind", "gap"), [("int8", 0.5 / 127), ("nf4", 0.1520)])
@settings(deadline=None, max_examples=60)
@given(weights=arrays(np.float32, (2, 128, 4), elements=st.floats(-8, 8, width=32)))
def test_no_weight_moves_further_than_half_a_gap_of_its_block(
    kind: str, gap: float, weights: np.ndarray
) -> None:
    moved = np.abs(there_and_back(weights, kind) - weights)
    room = np.repeat(np.abs(weights).reshape(2, 2, 64, 4).max(2), 64, axis=1) * gap
    assert (moved <= room * 1.0001 + 1e-7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_zero_and_the_largest_magnitude_are_exact(kind: str) -> None:
    weights = np.zeros((64, 2), np.float32)
    weights[5, 0], weights[6, 1] = 3.5, -2.25
    np.testing.assert_allclose(there_and_back(weights, kind)[[5, 6], [0, 1]], [3.5, -2.25], rtol=1e-6)
    assert np.count_nonzero(there_and_back(weights, kind)) == 2


def test_nf4_rounds_to_the_nearest_of_its_values() -> None:
    weights = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1).repeat(2, 1)
    want = quantize.NF4[np.abs(weights[..., None] - quantize.NF4).argmin(-1)]
    np.testing.assert_allclose(there_and_back(weights, "nf4"), want, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_base_is_small_and_near_and_everything_else_is_exact(
    kind: Any, checkpoints: dict[str, Path]
) -> None:
    on = gemma.mesh()
    arch, plain = stages.load(checkpoints["ple"], mesh=on, dtype="bfloat16")
    _, small = stages.load(checkpoints["ple"], mesh=on, dtype="bfloat16", quantized=kind)
    shapes = stages.shapes(arch, on, "bfloat16", kind)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), small) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )
    for one, two in zip(plain["stages"], small["stages"], strict=True):
        for here, there in zip(one, two, strict=True):
            for name, value in here.items():
                if not isinstance(there[name], Quantized):
                    np.testing.assert_array_equal(there[name], value)
                    assert "_proj.kernel" not in name and "_einsum" not in name
                    continue
                near = quantize.dequantize(there[name], jnp.dtype("float32"))
                error = jnp.linalg.norm(near - value.astype(jnp.float32)) / jnp.linalg.norm(
                    value.astype(jnp.float32)
                )
                assert 0 < float(error) < (0.01 if kind == "int8" else 0.12)
                assert there[name].codes.nbytes == value.size // (1 if kind == "int8" else 2)
