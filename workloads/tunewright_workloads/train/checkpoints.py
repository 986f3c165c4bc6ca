"""Orbax checkpoints of adapter, optimizer and position: committed as a whole or not at all.

`<output>/checkpoints/<step>/{adapter,optimizer,state}`. Orbax writes into a temporary directory and
renames it, so a kill at any point leaves the older checkpoints and some rubbish, which the next
start removes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import orbax.checkpoint as ocp

from tunewright_workloads.contract.faults import Fault, UserError

Tree = dict[str, Any]


METRIC = "evalLoss"


class Checkpoints:
    """The checkpoints below one path or gs:// URI."""

    def __init__(self, path: str, keep: int) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)
        policies = ocp.checkpoint_managers
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics[METRIC],
            reverse=True,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            best_fn=lambda metrics: metrics[METRIC],
            best_mode="min",
            create=True,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
        )
        self._place = path
        self._manager = ocp.CheckpointManager(
            path, options=options, item_names=("adapter", "optimizer", "state")
        )

    def latest(self) -> int | None:
        """The newest committed step."""
        return self._manager.latest_step()

    def state(self, step: int) -> dict[str, Any]:
        """The record that was saved with a step. Raises UserError when it is damaged."""
        with self._readable(step):
            restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.JsonRestore()))
            return dict(restored["state"])

    def restore(self, step: int, adapter: Tree, optimizer: Any) -> tuple[Tree, Any]:
        """Adapter and optimizer as they were, bit for bit, laid out as the given ones are.

        Raises UserError when they are damaged.
        """

        def shape(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

        with self._readable(step):
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    adapter=ocp.args.StandardRestore(jax.tree.map(shape, adapter)),
                    optimizer=ocp.args.StandardRestore(jax.tree.map(shape, optimizer)),
                ),
            )
            return restored["adapter"], restored["optimizer"]

    @contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        """A checkpoint of a file system that cannot be read is a fault with the way out.

        One in a bucket may be readable in a moment: its errors stay what they are, and are tried again.
        """
        try:
            yield
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            if isinstance(error, UserError) or "://" in self._place:
                raise
            before = max((s for s in self._manager.all_steps() if s < step), default=None)
            then = "starts anew" if before is None else f"goes on from step {before}"
            said = (str(error).splitlines() or [type(error).__name__])[0][:200]
            fix = f"Move this folder elsewhere, and the run {then}."
            raise UserError(Fault(f"{self._place}/{step}", f"cannot be read: {said}", None, fix)) from error

    def save(
        self, step: int, adapter: Tree, optimizer: Any, state: Mapping[str, Any], loss: float | None = None
    ) -> None:
        """Starts to save; the arrays are copied before this returns, the rest happens beside training.

        loss: on the validation rows at this very step, if it was measured.

        Waits for an earlier save first.
        """
        self._manager.save(
            step,
            args=ocp.args.Composite(
                adapter=ocp.args.StandardSave(adapter),
                optimizer=ocp.args.StandardSave(optimizer),
                state=ocp.args.JsonSave(dict(state)),
            ),
            metrics=None if loss is None else {METRIC: loss},
            force=True,
        )

    def best(self) -> int | None:
        """The committed step with the least validation loss, which is kept however old it is."""
        return self._manager.best_step()

    def wait(self) -> None:
        """Returns when what was saved is committed. Raises what went wrong in the background."""
        self._manager.wait_until_finished()

    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._manager.is_saving_in_progress()

    def close(self) -> None:
        self._manager.close()
