import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tunewright_workloads.gemma.loss import cross_entropy

B, T, D, V = 2, 13, 16, 50


def inputs() -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    hidden, head = jax.random.normal(keys[0], (B, T, D)) * 3, jax.random.normal(keys[1], (V, D))
    targets = jax.random.randint(keys[2], (B, T), 0, V)
    return hidden, head, targets, jax.random.uniform(keys[3], (B, T)) * (jnp.arange(T) % 3 > 0)


def plain(
    hidden: jax.Array, head: jax.Array, targets: jax.Array, weights: jax.Array, cap: float | None
) -> jax.Array:
    logits = hidden @ head.T
    if cap is not None:
        logits = jnp.tanh(logits / cap) * cap
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, targets) * weights)


@pytest.mark.parametrize("cap", [None, 5.0, 30.0])
@pytest.mark.parametrize("chunk", [4, 5, 13, 512])
def test_the_chunked_loss_and_its_gradient_are_the_plain_ones(cap: float | None, chunk: int) -> None:
    hidden, *rest = inputs()
    with jax.default_matmul_precision("highest"):
        want, slope = jax.value_and_grad(plain)(hidden, *rest, cap)
        got, own = jax.value_and_grad(lambda h: 2 * cross_entropy(h, *rest, cap, chunk))(hidden)
        alone = cross_entropy(hidden, *rest, cap, chunk)
    np.testing.assert_allclose(got, 2 * want, rtol=1e-5)
    np.testing.assert_allclose(alone, want, rtol=1e-5)
    np.testing.assert_allclose(own, 2 * slope, rtol=1e-4, atol=1e-5)


def test_the_logits_of_all_positions_never_exist() -> None:
    T, V, chunk = 64, 1000, 16
    shapes = (jnp.zeros((1, T, D)), jnp.zeros((V, D)), jnp.zeros((1, T), jnp.int32), jnp.ones((1, T)))
    program = jax.make_jaxpr(jax.grad(lambda h, *rest: cross_entropy(h, *rest, 30.0, chunk)))(*shapes)
    assert f"{T},{V}]" not in str(program)
    assert f"{chunk},{V}]" in str(program)


def test_positions_without_weight_do_not_count() -> None:
    hidden, head, targets, weights = inputs()
    other = jnp.where(weights > 0, targets, (targets + 1) % V)
    one, two = (cross_entropy(hidden, head, t, weights, 30.0, 4) for t in (targets, other))
    np.testing.assert_array_equal(one, two)
