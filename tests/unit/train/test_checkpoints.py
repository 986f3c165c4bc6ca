"""Checkpoints: the newest and the best are kept, and come back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.train.checkpoints import Checkpoints


def tree(step: int) -> Any:
    key = jax.random.key(step)
    return {"layers": {"0": {"a": jax.random.normal(key, (3, 2)), "b": jnp.full((2,), step, jnp.float32)}}}


@pytest.mark.parametrize(
    ("keep", "losses", "kept", "best"),
    [
        (1, [0.5, 0.1, 0.9, 0.7], [2, 4], 2),
        (2, [0.5, 0.4, 0.3], [2, 3], 3),
        (2, [None, None, None], [2, 3], None),
        (1, [0.2, None, None], [1, 3], 1),
    ],
)
def test_the_newest_and_the_one_with_the_least_validation_loss_are_kept(
    tmp_path: Path, keep: int, losses: list[float | None], kept: list[int], best: int | None
) -> None:
    made = Checkpoints(str(tmp_path / "c"), keep)
    for step, loss in enumerate(losses, 1):
        made.save(step, tree(step), {"count": jnp.asarray(step)}, {"step": step}, loss)
    made.wait()
    assert made.best() == best
    made.close()
    assert sorted(int(p.name) for p in (tmp_path / "c").iterdir() if p.name.isdigit()) == kept


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    made = Checkpoints(str(tmp_path / "c"), 3)
    state = {"step": 7, "identity": {"training.seed": 1, "adapter.targets": ["q_proj"]}}
    made.save(7, tree(7), {"count": jnp.asarray(7), "mu": tree(8)}, state)
    made.wait()
    made.close()
    again = Checkpoints(str(tmp_path / "c"), 3)
    assert again.latest() == 7
    assert again.state(7) == state
    adapter, optimizer = again.restore(7, tree(0), {"count": jnp.asarray(0), "mu": tree(0)})
    again.close()
    wanted = (tree(7), {"count": jnp.asarray(7), "mu": tree(8)})
    for a, b in zip(jax.tree.leaves((adapter, optimizer)), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_directory_without_checkpoints_has_none(tmp_path: Path) -> None:
    made = Checkpoints(str(tmp_path / "c"), 3)
    assert made.latest() is None and made.best() is None
    made.close()


@pytest.mark.parametrize("item", ["adapter", "optimizer", "state"])
@pytest.mark.parametrize("content", [b"", b"\x94\x00rubbish"])
def test_a_damaged_checkpoint_is_named_with_the_step_before(
    tmp_path: Path, item: str, content: bytes
) -> None:
    made = Checkpoints(str(tmp_path / "c"), 3)
    for step in (1, 2):
        made.save(step, tree(step), {"count": jnp.asarray(step)}, {"step": step})
    made.wait()
    made.close()
    for path in (tmp_path / "c/2" / item).rglob("*"):
        if path.is_file():
            path.write_bytes(content)
    again = Checkpoints(str(tmp_path / "c"), 3)
    with pytest.raises(UserError) as error:
        again.state(2)
        again.restore(2, tree(0), {"count": jnp.asarray(0)})
    assert f"{tmp_path}/c/2: cannot be read: " in str(error.value)
    assert "goes on from step 1" in str(error.value)
    assert again.state(1) == {"step": 1}
    again.close()
