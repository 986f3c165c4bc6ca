"""The jitted step: packing changes nothing, accumulation changes nothing, the base never moves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from support.rows import assistant, build, chat, user, write
from tunewright_workloads.contract.configs import Schedule
from tunewright_workloads.data.batches import Batch, Batches
from tunewright_workloads.data.dataset import Dataset
from tunewright_workloads.train import optimizer, program


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
    """All rows, one a line or several a line."""
    capacity = 256 if packed else int(data.lengths.max())
    made = Batches(data, 99, capacity, packing=packed, seed=1)
    members = made.bins(0)
    assert not packed or max(len(m) for m in members) > 2
    whole = Batches(data, len(members), capacity, packing=packed, seed=1)
    return whole.at(0)


def distance(a: Any, b: Any) -> float:
    return max(
        float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_packed_rows_give_the_logits_loss_and_gradients_of_rows_alone(
    each: Any, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, logits = each.program, {}

    def measure(batch: Batch) -> Any:
        @jax.jit
        def all_of_it(adapter: Any, base: Any, arrays: dict[str, jax.Array]) -> Any:
            model = nnx.merge(p.graph, program.filled(p.lora, adapter), base)
            mask = program.visible(arrays["segments"])
            out = model(arrays["tokens"], positions=arrays["positions"], attention_mask=mask)[0]
            return jax.value_and_grad(p.sum_loss)(adapter, base, arrays), out

        (loss, grads), out = all_of_it(each.adapter, p.base, rows(batch))
        for tokens, segments, row in zip(batch.tokens, batch.segments, np.asarray(out), strict=True):
            for s in range(1, segments.max() + 1):
                logits.setdefault(tokens[segments == s].tobytes(), []).append(row[segments == s])
        return float(loss) / data.trained, jax.tree.map(lambda g: g / data.trained, grads)

    alone_loss, alone = measure(bins(data, packed=False))
    packed_loss, packed = measure(bins(data, packed=True))
    assert abs(alone_loss - packed_loss) < 1e-5
    assert distance(alone, packed) < 1e-5
    assert len(logits) == len(data)
    for one, other in logits.values():
        np.testing.assert_allclose(one, other, atol=1e-4)
    if each.arch.ple:
        return

    def blind(segments: jax.Array) -> jax.Array:
        T = segments.shape[-1]
        return jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (*segments.shape, T))

    monkeypatch.setattr(program, "visible", blind)
    wrong_loss, wrong = measure(bins(data, packed=True))
    assert abs(alone_loss - wrong_loss) > 1e-4
    assert distance(alone, wrong) > 1e-4


def test_the_window_of_local_layers_counts_from_each_example(adapted: Any, data: Dataset) -> None:
    """A token further back than every layer's reach changes nothing; the same token nearer does.

    One local layer alone: its example's own window is all that there is to see.
    """
    window = adapted.arch.window
    T = 4 * window
    segments = np.ones((1, T), np.int32)
    segments[:, : window + 5] = 2
    from tunix.models.gemma4 import model as tunix

    p = adapted.program
    model = nnx.merge(p.graph, p.lora, p.base)
    layer = next(x for x in model.layers if x.attn.attn_type == tunix.AttentionType.LOCAL_SLIDING)
    x = jax.random.normal(jax.random.key(0), (1, T, adapted.arch.embed))
    at = jnp.asarray([[i if i < window + 5 else i - window - 5 for i in range(T)]])
    moved = jax.jacrev(
        lambda y: layer.attn(y, at, None, program.visible(jnp.asarray(segments)))[1][0, 3 * window].sum()
    )(x)[0]
    reach = np.flatnonzero(np.abs(np.asarray(moved)).sum(-1) > 0)
    assert reach.tolist() == list(range(2 * window + 1, 3 * window + 1))


def test_padding_sees_nothing_and_is_seen_by_nothing() -> None:
    mask = np.asarray(program.visible(jnp.asarray([[1, 1, 2, 0]])))[0]
    assert mask.astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


def run(adapted: Any, batches: Batches, micro: int, steps: int = 3) -> tuple[list[float], Any]:
    p = adapted.program
    config = Schedule(steps=10, global_batch_size=batches.batch_size, learning_rate=1e-2)
    chain = optimizer.make(config, 10)
    adapter = jax.tree.map(jnp.array, adapted.adapter)
    losses = []
    with adapted.mesh:
        adapter = jax.device_put(adapter, jax.tree.map(lambda x: x.sharding, adapted.adapter))
        state = program.start(chain, adapter, adapted.mesh)
        step = p.train(chain, adapter, state)
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
    np.testing.assert_allclose(losses, parts, rtol=1e-6)
    assert distance(adapter, four) < 1e-3  # a tenth of the learning rate: Adam magnifies what is near zero
    assert losses[0] != losses[2]


def test_the_base_is_bit_identical_after_training(adapted: Any, whole: Any) -> None:
    before, _, adapter = whole
    assert distance(adapter, adapted.adapter) > 1e-3
    for a, b in zip(before, jax.tree.leaves(adapted.program.base), strict=True):
        assert np.array_equal(a, np.asarray(b))


def test_an_empty_batch_moves_nothing_to_nan(adapted: Any, data: Dataset) -> None:
    batches = Batches(data, 4, 64, seed=5)
    empty = batches.fill([])
    with adapted.mesh:
        loss, grads = jax.jit(jax.value_and_grad(adapted.program.sum_loss))(
            adapted.adapter, adapted.program.base, rows(empty)
        )
    assert float(loss) == 0
    assert all(bool(jnp.isfinite(g).all()) and float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(grads))


def test_moments_are_float32_and_laid_out_as_their_parameters(adapted: Any) -> None:
    chain = optimizer.make(Schedule(steps=10, global_batch_size=1, learning_rate=1e-3), 10)
    state = program.start(chain, adapted.adapter, adapted.mesh)
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
