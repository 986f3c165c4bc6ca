import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunewright_workloads.gemma import attention

B, N, K, T, H = 2, 4, 2, 70, 8


def inputs(length: int = T) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(1), 3)
    q = jax.random.normal(keys[0], (B, N, length, H))
    k, v = (jax.random.normal(key, (B, K, length, H)) for key in keys[1:])
    segments = jnp.asarray(np.repeat([[1, 2, 3, 0], [1, 1, 2, 3]], -(-length // 4), axis=1)[:, :length])
    return q, k, v, segments


def plain(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, window: int | None) -> jax.Array:
    k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
    i = jnp.arange(q.shape[2])
    mask = (i[:, None] >= i) & (segments[:, None, :, None] == segments[:, None, None, :])
    if window is not None:
        mask &= i[:, None] - i < window
    scores = jnp.where(mask, jnp.einsum("bnth,bnsh->bnts", q, k), attention.MASKED)
    return jnp.einsum("bnts,bnsh->bnth", jax.nn.softmax(scores, -1), v)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 40, 500])
@pytest.mark.parametrize("size", [8, 16, 64, 70, 512])
def test_blocks_equal_plain_attention(window: int | None, size: int) -> None:
    args = inputs()

    def value(attend: object) -> tuple[jax.Array, object]:
        probe = jax.random.normal(jax.random.key(2), (B, N, T, H))
        run = lambda q, k, v: jnp.sum(attend(q, k, v) * probe)  # type: ignore[operator]  # noqa: E731
        return jax.value_and_grad(run, argnums=(0, 1, 2))(*args[:3])

    got = value(lambda q, k, v: attention.blocks(q, k, v, args[3], window, size))
    want = value(lambda q, k, v: plain(q, k, v, args[3], window))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    for one, two in zip(got[1], want[1], strict=True):  # type: ignore[call-overload]
        np.testing.assert_allclose(one, two, atol=2e-5)


def test_a_long_row_makes_no_square_array() -> None:
    length, size = 256, 32
    shapes = inputs(length)
    for window, widest in ((None, f"{size},{length}]"), (16, f"{size},{size + 15}]")):
        text = str(
            jax.make_jaxpr(jax.grad(lambda q, w=window: attention.blocks(q, *shapes[1:], w, size).sum()))(
                shapes[0]
            )
        )
        assert f"{length},{length}]" not in text
        assert widest in text


@pytest.mark.parametrize(
    ("length", "most", "block"), [(3072, 1024, 1024), (6144, 512, 512), (640, 512, 128), (128, 1024, 128)]
)
def test_the_kernels_block_divides_the_row(length: int, most: int, block: int) -> None:
    assert attention.block_of(length, most) == block


def test_a_row_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        attention.block_of(3000, 512)
