"""What the backward pass keeps: what was asked for, else the most that fits."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest

from support import gemma
from support.rows import arch
from tunewright_workloads.contract.configs import AdapterConfig, Schedule
from tunewright_workloads.gemma import stages
from tunewright_workloads.train import remat

ADAPTER = AdapterConfig(rank=64, alpha=64)
BIG = arch(layers=60, globals=((False,) * 5 + (True,)) * 10)


def kept(tokens: int, policy: str = "auto", kind: str = "v5p", fsdp: int = 4, tp: int = 1) -> object:
    schedule = Schedule(steps=1, global_batch_size=4, learning_rate=1e-4, remat=policy)  # type: ignore[arg-type]
    return remat.kept(schedule, ADAPTER, BIG, kind=kind, fsdp=fsdp, tp=tp, tokens=tokens)


def test_what_is_asked_for_is_done() -> None:
    assert kept(1 << 20, "none") == "none"
    assert kept(16, "decoder") == "decoder"


def test_a_cpu_recomputes_nothing() -> None:
    assert kept(1 << 20, kind="cpu", fsdp=1) == "none"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (5120, remat.ALL),
        (6144, remat.CHOICES[1]),
        (8192, remat.CHOICES[1]),
        (12288, remat.CHOICES[2]),
        (32768, ()),
    ],
)
def test_the_most_that_fits_is_kept(tokens: int, expected: tuple[str, ...]) -> None:
    assert kept(tokens) == expected


def test_the_model_agrees_with_what_the_compiler_said() -> None:
    """GiB of arguments and of temporaries by the TPU compiler, 31B, rank 64, v5p 2x2x1, fsdp 4 (bench/aot.py)."""
    assert remat.resident(BIG, ADAPTER, 4, 1) / 2**30 == pytest.approx(18.56, rel=0.01)
    assert remat.temporaries(BIG, ADAPTER, remat.ALL, 6144, 1) / 2**30 == pytest.approx(74.5, rel=0.01)
    # Of a like program that gathers its weights: where it kept less, and shorter rows.
    for saved, tokens, gib in (
        (remat.ALL, 4096, 48.5),
        (remat.ALL, 3072, 36.2),
        (remat.CHOICES[1], 12288, 79.2),
        ((), 6144, 11.9),
    ):
        assert remat.temporaries(BIG, ADAPTER, saved, tokens, 1) / 2**30 == pytest.approx(gib, rel=0.1)


def test_on_v6e_weights_under_way_take_room_too() -> None:
    """31B on 2x4, rows of 3072, o and down kept: the compiler said 11.2 + 19.9 GiB of 29.8, which is too much."""
    temporaries = remat.temporaries(BIG, ADAPTER, ("o", "down"), 3072, 1)
    under_way = remat.moving(BIG, ADAPTER, "v6e", 8, 1)
    assert (temporaries + under_way) / 2**30 == pytest.approx(19.94, rel=0.01)
    assert kept(3072, kind="v6e", fsdp=8) == ()
    assert remat.moving(BIG, ADAPTER, "v5p", 8, 1) == 0 == remat.moving(BIG, ADAPTER, "v6e", 4, 2)


@pytest.mark.parametrize("base", ["none", "int8", "nf4"])
@pytest.mark.parametrize(("fsdp", "tp"), [(4, 1), (2, 2), (1, 4)])
def test_what_a_device_holds_is_what_the_layout_gives_it(base: Any, fsdp: int, tp: int) -> None:
    """Base, scales, adapter and both moments, each by its partition; what is replicated is a few norms."""
    adapter = ADAPTER.model_copy(update={"quantize_base": base})
    ways = {"fsdp": fsdp, "tp": tp}

    def held(leaf: Any) -> float:
        split = [
            way
            for axis in leaf.sharding.spec
            if axis
            for way in (axis if isinstance(axis, tuple) else (axis,))
        ]
        return math.prod(leaf.shape) * leaf.dtype.itemsize / math.prod(ways[way] for way in split)

    on = gemma.mesh()
    weights = sum(map(held, jax.tree.leaves(stages.shapes(BIG, on, "bfloat16", base))))
    lora = sum(map(held, jax.tree.leaves(stages.adapter_shapes(BIG, adapter, on))))
    assert remat.resident(BIG, adapter, fsdp, tp) == pytest.approx(weights + 3 * lora, rel=1e-3)


def test_a_quantized_base_leaves_room_to_keep_more() -> None:
    small = ADAPTER.model_copy(update={"quantize_base": "nf4"})
    schedule = Schedule(steps=1, global_batch_size=4, learning_rate=1e-4)
    assert kept(6144) != remat.ALL
    assert remat.kept(schedule, small, BIG, kind="v5p", fsdp=4, tp=1, tokens=6144) == remat.ALL
