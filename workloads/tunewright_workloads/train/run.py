"""One training run: load, resume, step, save, stop when asked, report."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tunewright_workloads.contract import accelerators, exits, models
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.contract.progress import ProgressFile
from tunewright_workloads.gemma import program, stages
from tunewright_workloads.train import board, hosts, published, record
from tunewright_workloads.train import mesh as meshes
from tunewright_workloads.train import optimizer as optimizers
from tunewright_workloads.train import output as outputs
from tunewright_workloads.train import remat as remats
from tunewright_workloads.train.checkpoints import Checkpoints
from tunewright_workloads.train.metrics import Metrics, say
from tunewright_workloads.train.prepare import Run
from tunewright_workloads.train.program import Program, mean_loss, start
from tunewright_workloads.train.stop import Stop


class Diverged(UserError):  # noqa: N818  (a fact about the run)
    """The loss is no number any more."""


class Trainer:
    """A run on this process's devices. `train` returns the exit code."""

    def __init__(self, run: Run, output: outputs.Output, stop: Stop) -> None:
        self.run, self.output, self.stop = run, output, stop
        self.config = run.config
        progress = ProgressFile(self.config.progress if output.chief else None)
        self.metrics = Metrics(output, progress, run.steps)
        self.boards: list[Any] = []
        self.times = {"load": 0.0, "compile": 0.0, "checkpoint": 0.0, "evaluation": 0.0}
        self.checkpoints = Checkpoints(output.checkpoints, self.config.checkpoint_keep)
        self._saved: int | None = None
        self._evaluated: int | None = None
        self._evaluate: Any = None
        self.cache = Cache()

    def build(self) -> None:
        """Mesh, model, adapter, optimizer; then whatever the newest checkpoint holds."""
        run, config = self.run, self.config
        began = time.monotonic()
        fsdp, tp = meshes.choose(config.mesh, run.arch, jax.device_count(), run.micro)
        self.mesh = Mesh(np.asarray(jax.devices()).reshape(fsdp, tp), ("fsdp", "tp"))
        dtype = jnp.dtype(config.compute_dtype)
        self.metrics.message("loading the base model")
        with self.mesh:
            quantized = config.adapter.quantize_base
            _, base = stages.load(run.model, mesh=self.mesh, dtype=dtype, quantized=quantized)
            self.adapter = stages.init(run.arch, config.adapter, seed=config.training.seed, mesh=self.mesh)
            settings = program.Settings.of(
                run.arch, config.adapter, mesh=self.mesh, compute_dtype=dtype, remat=self.remat(fsdp, tp)
            )
            seed = config.training.seed if config.adapter.dropout else None
            self.program = Program(base, settings, self.mesh, seed)
            self.unstack = jax.jit(partial(stages.unstack, run.arch))
            self.optimizer = optimizers.make(config.training, run.steps)
            self.rate = optimizers.schedule(config.training, run.steps)
            self.state = start(self.optimizer, self.adapter, self.mesh)
        say(f"mesh fsdp={fsdp} tp={tp}, base and compute {config.compute_dtype}, adapter float32")
        self.step = self.resume()
        self.times["load"] = time.monotonic() - began

    def remat(self, fsdp: int, tp: int) -> Any:
        """What the backward pass keeps."""
        run, config = self.run, self.config
        kept = remats.kept(
            config.training,
            config.adapter,
            run.arch,
            kind=config.mesh.accelerator,
            fsdp=fsdp,
            tp=tp,
            tokens=run.micro // fsdp * run.batches.length,
        )
        say(f"backward pass keeps {kept if isinstance(kept, str) else ', '.join(kept) or 'nothing'}")
        return kept

    def resume(self) -> int:
        """Restores the newest checkpoint, if there is one. Returns the steps that are done."""
        step = self.checkpoints.latest()
        if step is None:
            return 0
        there = self.checkpoints.state(step)
        outputs.refuse(there["identity"], self.run.identity, str(self.output.uri))
        tree, self.state = self.checkpoints.restore(step, self.unstack(self.adapter), self.state)
        self.adapter = stages.stack(self.run.arch, tree, self.mesh)
        self._saved = self.metrics.checkpoint = step
        self.metrics.eval_loss, self._evaluated = there.get("evalLoss"), there.get("evaluated")
        say(f"resuming after step {step}")
        return step

    def train(self) -> int:
        """Runs to the end, or to the step at which a signal arrives. Returns the exit code.

        Raises Diverged when a loss or gradient is not finite.
        """
        run, config = self.run, self.config
        self.watch()
        self.metrics.start(self.step)
        if self.step:
            self.stop.arm()
        self.metrics.message("compiling" if self.step < run.steps else "finishing", step=self.step)
        with self.mesh:
            compiled: Any = None
            pending: tuple[int, Any, int] | None = None
            began = time.monotonic()
            while self.step < run.steps and not hosts.any_of(self.stop.asked is not None):
                batch = run.batches.at(self.step)
                inputs = (self.program.base, self.program.place(batch, run.micro), np.int32(self.step))
                if compiled is None:
                    program = self.program.train(self.optimizer, self.rate, self.adapter, self.state)
                    compiled = program.lower(self.adapter, self.state, *inputs).compile()
                    self.times["compile"] = time.monotonic() - began
                    began = time.monotonic()
                self.adapter, self.state, values = compiled(self.adapter, self.state, *inputs)
                self.step += 1
                if pending is not None:
                    began = self._note(*pending, began)
                pending = (self.step, values, batch.useful)
                self.stop.arm()
                if self.step % config.checkpoint_every == 0 and self.step < run.steps:
                    self._note(*pending, began)
                    pending = None
                    self.evaluate()
                    self.save()
                    began = time.monotonic()
            if pending is not None:
                self._note(*pending, began)
            if self.step < run.steps:
                return self.leave()
            self.evaluate()
            self.save(wait=True)
        return self.finish()

    def watch(self) -> None:
        """Lets the run be watched from outside."""
        if not self.output.chief:
            return
        config, run = self.config, self.run
        if config.metrics_port is not None:
            chip, count = accelerators.ACCELERATORS[config.mesh.accelerator], jax.device_count()
            spec = models.MODELS.get(config.model.name)
            params = (spec and spec.params_active) or record.parameters(run)
            self.boards.append(
                board.Prometheus(
                    config.metrics_port,
                    config.job,
                    padded=config.training.global_batch_size * run.batches.length,
                    flops=4 * params,
                    peak=chip.peak_flops / chip.devices_per_chip * count,
                    memory=memory,
                )
            )
        self.boards.append(board.TensorBoard(self.output.path(board.TENSORBOARD)))
        self.metrics.observers += self.boards

    def _note(self, step: int, values: Any, useful: int, began: float) -> float:
        """Records a finished step; returns the time from which the next one counts."""
        loss, norm, tokens, rate = (float(v) for v in values)
        now = time.monotonic()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            kept = f"The checkpoint of step {self._saved} is kept. " if self._saved else ""
            raise Diverged(
                Fault(
                    f"step {step}",
                    "the loss and its gradient must be finite",
                    f"loss {loss}, gradient norm {norm}",
                    f"{kept}Lower training.learningRate ({self.config.training.learning_rate}), raise "
                    "training.warmupSteps, or set training.maxGradNorm.",
                )
            )
        values = {"loss": loss, "gradNorm": norm, "tokens": tokens, "learningRate": rate}
        self.metrics.step(step, self.run.batches.epoch(step), values, useful, now - began)
        if not self.checkpoints.busy():
            self.committed()
        return now

    def committed(self) -> None:
        """What was saved is safe: says so, once."""
        if self._saved is not None and self._saved != self.metrics.checkpoint:
            self.metrics.committed(self._saved)

    def save(self, wait: bool = False) -> None:
        """Saves the current step unless it is saved already."""
        began = time.monotonic()
        if self._saved != self.step:
            state = {
                "step": self.step, "position": self.step, "seed": self.config.training.seed,
                "rank": self.config.adapter.rank, "alpha": self.config.adapter.alpha,
                "targets": list(self.config.adapter.targets), "base_digest": self.run.base_digest,
                "dataset_digest": self.run.train.digest, "config_digest": self.run.digest,
                "identity": self.run.identity, "evalLoss": self.metrics.eval_loss,
                "evaluated": self._evaluated, "job": self.config.job,
            }  # fmt: skip
            self.metrics.publish()
            loss = self.metrics.eval_loss if self._evaluated == self.step else None
            self.checkpoints.save(self.step, self.unstack(self.adapter), self.state, state, loss)
            self._saved = self.step
        if wait:
            self.checkpoints.wait()
            self.committed()
        self.times["checkpoint"] += time.monotonic() - began

    def evaluate(self) -> None:
        """The loss on the validation rows, if there are any."""
        batches = self.run.validation_batches
        if batches is None or self._evaluated == self.step:
            return
        began = time.monotonic()
        self._evaluate = self._evaluate or self.program.evaluate()
        loss = mean_loss(self._evaluate, self.program, self.adapter, batches, self.run.micro)
        self.metrics.eval_loss, self._evaluated = loss, self.step
        self.metrics.add({"event": "evaluation", "step": self.step, "evalLoss": loss})
        say(f"step {self.step}: validation loss {loss:.4f}")
        self.times["evaluation"] += time.monotonic() - began

    def leave(self) -> int:
        """Asked to stop: saves and says so."""
        say(f"{self.stop.asked}: saving step {self.step}")
        self.save(wait=True)
        self.publish()
        self.metrics.message(f"stopped by {self.stop.asked}; the checkpoint of step {self.step} is saved")
        return exits.PREEMPTED

    def finish(self) -> int:
        """Writes picture and report; the report marks the run as finished."""
        self.metrics.close()
        if self.output.chief:
            board.draw(self.metrics.lines, self.output.path(board.CURVE), self.config.job)
            self.output.publish(board.CURVE)
            self.publish()
            made = record.report(self.run, self.metrics, self.times, jax.process_count(), self.cache.state)
            self.output.write(outputs.REPORT, record.as_json(made))
            text = f"done: {record.summary(made.model_dump(by_alias=True))}"
            best = self.checkpoints.best()
            if best is not None and best != self.step:
                text += f"; the least validation loss was at step {best}, whose checkpoint is kept"
            artifacts = published.digests(self.output, "jax", self.run.train.digest)
            self.metrics.message(text, done=True, artifacts=artifacts)
            say(text)
        return exits.DONE

    def publish(self) -> None:
        """Copies TensorBoard's files to where the output is."""
        for item in self.boards:
            if isinstance(item, board.TensorBoard):
                item.flush()
        if self.output.chief and not self.output.local:
            for path in self.output.path(board.TENSORBOARD).iterdir():
                self.output.publish(f"{board.TENSORBOARD}/{path.name}")

    def close(self) -> None:
        """Lets go of files, ports and threads, however the run ended."""
        self.metrics.close()
        for item in self.boards:
            item.close()
        self.checkpoints.close()


def memory() -> int | None:
    """Peak bytes in use on the fullest of this process's devices, where the backend counts them."""
    found = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    return max((n for n in found if n is not None), default=None)


class Cache:
    """Whether programs of this process came from JAX's persistent compilation cache."""

    def __init__(self) -> None:
        self.hits = 0
        jax.monitoring.register_event_listener(self._event)

    def _event(self, event: str, **_: Any) -> None:
        self.hits += event == "/jax/compilation_cache/cache_hits"

    @property
    def state(self) -> Literal["cold", "warm"]:
        return "warm" if self.hits else "cold"
