"""The jitted step: packing changes nothing, accumulation changes nothing, the base never moves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support.rows import assistant, build, chat, user, write
from tunewright_workloads.contract.configs import Schedule
from tunewright_workloads.data.batches import Batch, Batches
from tunewright_workloads.data.dataset import Dataset
from tunewright_workloads.gemma import program
from tunewright_workloads.train import optimizer
from tunewright_workloads.train.program import start


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows well below and well above the tiny model's window of 32 tokens."""
    words = ["ledger", "window", "of", "the", "packed", "row", "is", "long", "enough", "for", "it"]
    rows = [chat(user("How?"), assistant(" ".join((words * 4)[: 1 + (11 * i) % 43]))) for i in range(12)]
    found = build(write(tmp_path_factory.mktemp("data") / "t.jsonl", *rows))
    assert found.lengths.min() < 32 < 64 < found.lengths.max()
    return found


def rows(batch: Batch) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in batch.arrays().items()}


def bins(data: Dataset, packed: bool) -> Batch:
    """All rows, one a line or several a line, in one shape: one program is compiled for both."""
    made = Batches(data, len(data), 128, packing=packed, seed=1)
    members = made.bins(0)
    assert not packed or max(len(m) for m in members) > 2
    wide = Batches(data, len(data), 128, packing=True)
    return wide.fill(members)


def distance(a: Any, b: Any) -> float:
    return max(
        float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


class Measured:
    """Mean loss, mean gradients and logits of batches of one shape."""

    def __init__(self, adapted: Any, data: Dataset) -> None:
        self.adapted, self.count = adapted, data.trained
        p = adapted.program

        @jax.jit
        def run(adapter: Any, base: Any, arrays: dict[str, jax.Array]) -> Any:
            out = program.logits(adapter, base, arrays, p.settings)
            return jax.value_and_grad(p.sum_loss)(adapter, base, arrays), out

        self.run = run

    def __call__(self, batch: Batch, **changes: Any) -> tuple[float, Any, np.ndarray]:
        (loss, grads), out = self.run(
            self.adapted.adapter, self.adapted.program.base, {**rows(batch), **changes}
        )
        return float(loss) / self.count, jax.tree.map(lambda g: g / self.count, grads), np.asarray(out)


@pytest.fixture(scope="module")
def measured(each: Any, data: Dataset) -> Measured:
    return Measured(each, data)


def by_row(batch: Batch, out: np.ndarray) -> dict[bytes, np.ndarray]:
    """Logits of each example, by its tokens."""
    found = {}
    for tokens, segments, row in zip(batch.tokens, batch.segments, out, strict=True):
        for s in range(1, segments.max() + 1):
            found[tokens[segments == s].tobytes()] = row[segments == s]
    return found


def test_packed_rows_give_the_logits_loss_and_gradients_of_rows_alone(
    measured: Measured, data: Dataset
) -> None:
    """Rows reach beyond the window of the local layers, so both kinds of layer are in it."""
    alone_batch, packed_batch = bins(data, packed=False), bins(data, packed=True)
    alone_loss, alone, alone_logits = measured(alone_batch)
    packed_loss, packed, packed_logits = measured(packed_batch)
    assert abs(alone_loss - packed_loss) < 1e-5
    assert distance(alone, packed) < 1e-5
    one, other = by_row(alone_batch, alone_logits), by_row(packed_batch, packed_logits)
    assert one.keys() == other.keys() and len(one) == len(data)
    for key, value in one.items():
        np.testing.assert_allclose(value, other[key], atol=1e-4)
    wrong_loss, wrong, _ = measured(packed_batch, segments=jnp.asarray(packed_batch.segments > 0, jnp.int32))
    assert abs(alone_loss - wrong_loss) > 1e-4
    assert distance(alone, wrong) > 1e-4


def test_an_empty_batch_moves_nothing_to_nan(measured: Measured, data: Dataset) -> None:
    empty = Batches(data, len(data), 128, packing=True).fill([])
    loss, grads, _ = measured(empty)
    assert loss == 0
    assert all(bool(jnp.isfinite(g).all()) and float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(grads))


def run(adapted: Any, batches: Batches, micro: int, steps: int = 3) -> tuple[list[float], Any]:
    p = adapted.program
    config = Schedule(steps=10, global_batch_size=batches.batch_size, learning_rate=1e-2)
    chain = optimizer.make(config, 10)
    adapter = jax.tree.map(jnp.array, adapted.adapter)
    losses = []
    with adapted.mesh:
        adapter = jax.device_put(adapter, jax.tree.map(lambda x: x.sharding, adapted.adapter))
        state = start(chain, adapter, adapted.mesh)
        step = p.train(chain, optimizer.schedule(config, 10), adapter, state)
        for i in range(steps):
            arrays = p.place(batches.at(i), micro)
            adapter, state, values = step(adapter, state, p.base, arrays, np.int32(i))
            losses.append(float(values.loss))
    return losses, adapter


@pytest.fixture(scope="module")
def whole(adapted: Any, data: Dataset) -> Any:
    """Three steps of four rows at once, and the base as it was before."""
    before = [np.array(x) for x in jax.tree.leaves(adapted.program.base)]
    return before, *run(adapted, Batches(data, 4, 128, packing=False, seed=5), 4)


def test_accumulation_over_micro_batches_equals_one_batch(adapted: Any, data: Dataset, whole: Any) -> None:
    """Rows have different numbers of trained tokens, so a mean of their means would differ."""
    _, losses, adapter = whole
    batches = Batches(data, 4, 128, packing=False, seed=5)
    assert len(set(batches.at(0).weights.sum(-1).tolist())) > 1
    parts, four = run(adapted, batches, 1)
    np.testing.assert_allclose(losses[0], parts[0], rtol=1e-6)
    np.testing.assert_allclose(losses, parts, rtol=1e-5)
    assert distance(adapter, four) < 1e-3  # a tenth of the learning rate: Adam magnifies what is near zero
    assert losses[0] != losses[2]


def test_the_base_is_bit_identical_after_training(adapted: Any, whole: Any) -> None:
    before, _, adapter = whole
    assert distance(adapter, adapted.adapter) > 1e-3
    for a, b in zip(before, jax.tree.leaves(adapted.program.base), strict=True):
        assert np.array_equal(a, np.asarray(b))


def test_moments_are_float32_and_laid_out_as_their_parameters(adapted: Any) -> None:
    chain = optimizer.make(Schedule(steps=10, global_batch_size=1, learning_rate=1e-3), 10)
    state = start(chain, adapted.adapter, adapted.mesh)
    moments = [x for x in jax.tree.leaves(state) if x.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(adapted.adapter))
    assert {x.dtype for x in moments} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", {0: 0.0, 1: 0.5, 2: 1.0, 6: 0.5, 10: 0.0}),
        ("linear", {0: 0.0, 2: 1.0, 4: 0.75, 10: 0.0}),
        ("constant", {0: 0.0, 1: 0.5, 2: 1.0, 9: 1.0}),
    ],
)
def test_learning_rates(schedule: Any, rates: dict[int, float]) -> None:
    config = Schedule(steps=10, global_batch_size=1, learning_rate=2.0, warmup_steps=2, schedule=schedule)
    rate = optimizer.schedule(config, 10)
    for step, expected in rates.items():
        assert float(rate(jnp.asarray(step))) == pytest.approx(2 * expected, abs=1e-6)


def test_no_warm_up_starts_at_the_peak() -> None:
    config = Schedule(steps=10, global_batch_size=1, learning_rate=2.0)
    assert float(optimizer.schedule(config, 10)(jnp.asarray(0))) == 2.0


def test_clipping_limits_the_norm_and_can_be_left_out() -> None:
    huge = {"a": jnp.full((4,), 1e6)}
    for limit, same in ((1.0, False), (None, True)):
        config = Schedule(steps=10, global_batch_size=1, learning_rate=1.0, max_grad_norm=limit)
        chain = optimizer.make(config, 10)
        state = chain.init(huge)
        _, state = chain.update(huge, state, huge)
        mu = optax.tree.get(state, "mu")["a"]
        assert bool(jnp.allclose(mu, 0.1 * 1e6)) == same
