"""TRL's SFTTrainer on our rows: no preprocessing, no shuffling, a token-weighted loss, FSDP.

What is changed of it: rows come in the run's own order, the learning rate follows the same curve as
the JAX program's, checkpoints are our own (whole or not there, and for any number of processes), and
a signal ends the run after a step with everything saved.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from tunewright_workloads.contract.configs import Schedule
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gpu import checkpoints, validation
from tunewright_workloads.gpu.rows import Collator, numbers
from tunewright_workloads.train.metrics import Metrics, say
from tunewright_workloads.train.prepare import Run
from tunewright_workloads.train.stop import Stop


def rate(config: Schedule, steps: int, step: int) -> float:
    """Share of the peak learning rate at `step` (from 0): the curve of the JAX program."""
    if step < config.warmup_steps:
        return step / max(1, config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1 - done if config.schedule == "linear" else 1.0


def arguments(run: Run, where: Path, world: int, cpu: bool) -> SFTConfig:
    """TRL's settings for a run on `world` processes."""
    t, c = run.config.training, run.config
    bf16 = c.compute_dtype == "bfloat16"
    return SFTConfig(
        output_dir=str(where),
        max_steps=run.steps,
        per_device_train_batch_size=run.micro // world,
        gradient_accumulation_steps=t.global_batch_size // run.micro,
        average_tokens_across_devices=True,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        max_grad_norm=t.max_grad_norm or 0.0,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        optim="adamw_torch",
        seed=t.seed,
        data_seed=t.seed,
        bf16=bf16 and not cpu,
        gradient_checkpointing=t.remat not in ("none", "auto") or (t.remat == "auto" and not cpu),
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=1,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=[],
        save_strategy="steps",
        save_steps=c.checkpoint_every,
        eval_strategy="no",
        dataset_kwargs={"skip_prepare_dataset": True},
        packing=False,
        max_length=None,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_drop_last=False,
        use_cpu=cpu,
    )


class Trainer(SFTTrainer):
    """SFTTrainer over the rows of a `Run`, sharded with FSDP when there are several processes."""

    def __init__(
        self, run: Run, model: nn.Module, args: SFTConfig, tokenizer: Any, callback: Callback
    ) -> None:
        self.run, self.callback = run, callback
        super().__init__(
            model=model,
            args=args,
            train_dataset=numbers(run.batches, run.steps),
            data_collator=Collator(run.batches, run.arch.window),
            processing_class=tokenizer,
            callbacks=[callback],
        )
        self.remove_callback(PrinterCallback)

    def create_accelerator_and_postprocess(self) -> None:
        """FSDP on CPU, too: accelerate offers it for devices only, its sharding works on both."""
        super().create_accelerator_and_postprocess()
        if self.args.world_size == 1:
            return
        state = self.accelerator.state
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Gemma4TextDecoderLayer"],
            state_dict_type="FULL_STATE_DICT",
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
        if state.mixed_precision != "no":
            plugin.set_mixed_precision(state.mixed_precision)
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = plugin
        self.is_fsdp_enabled = True

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LambdaLR:
        schedule = self.run.config.training
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer, lambda step: rate(schedule, self.run.steps, step)
        )
        return self.lr_scheduler

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The published model's card is written by the merge; a checkpoint needs none."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        keep = self.run.config.checkpoint_keep
        if self.callback.chief:
            self.callback.metrics.publish()
        loss = self.validate()
        checkpoints.save(
            Path(self.args.output_dir),
            self.model,
            self.optimizer,
            self.state,
            keep,
            self.is_world_process_zero(),
            loss,
        )
        self.accelerator.wait_for_everyone()

    def validate(self) -> float | None:
        """Measures and records the loss on the validation rows, if there are any."""
        if self.run.validation_batches is None:
            return None
        began = time.monotonic()
        value = validation.loss(
            self.model_wrapped, self.run.validation_batches, self.run.arch.window,
            self.args.process_index, self.args.world_size, self.accelerator.device,
        )  # fmt: skip
        self.callback.validated(self.state.global_step, value, time.monotonic() - began)
        return value

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        checkpoints.load_adapter(Path(resume_from_checkpoint), model or self.model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            checkpoints.load_optimizer(Path(checkpoint), self.model, self.optimizer)
            # The curve is a function of the step alone: the scheduler only has to know where it is.
            self.lr_scheduler.last_epoch = self.state.global_step - 1
            self.lr_scheduler.step()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            checkpoints.load_random(Path(checkpoint))


class Callback(TrainerCallback):
    """Records steps, commits checkpoints, and ends the run when asked."""

    def __init__(self, run: Run, metrics: Metrics, stop: Stop, chief: bool) -> None:
        self.run, self.metrics, self.stop, self.chief = run, metrics, stop, chief
        self.saving = self.validating = 0.0
        self._began = self._entered = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._seconds = time.monotonic() - self._began
        self.stop.arm()
        # One process may get the signal before another: all of them end after the same step.
        asked = torch.tensor(float(self.stop.asked is not None))
        if torch.distributed.is_initialized():
            device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
            asked = asked.to(device)
            torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        if asked.item():
            self.stop.asked = self.stop.asked or "SIGTERM"
            control.should_save = True
            control.should_training_stop = True
        if state.global_step == state.max_steps:
            control.should_save = True
        self._entered = time.monotonic()
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs or not self.chief:
            return
        step = state.global_step
        batch = self.run.batches.at(step - 1)
        values = {
            "loss": float(logs["loss"]),
            "gradNorm": float(logs.get("grad_norm", 0.0)),
            "tokens": float(batch.trained),
        }
        if not math.isfinite(values["loss"]) or not math.isfinite(values["gradNorm"]):
            raise UserError(
                Fault(
                    f"step {step}",
                    "the loss and its gradient must be finite",
                    f"loss {values['loss']}, gradient norm {values['gradNorm']}",
                    f"Lower training.learningRate ({self.run.config.training.learning_rate}) or raise training.warmupSteps.",
                )
            )
        self.metrics.step(step, self.run.batches.epoch(step), values, batch.useful, self._seconds)

    def validated(self, step: int, value: float, seconds: float) -> None:
        self.validating += seconds
        self.saving -= seconds
        self.metrics.eval_loss = value
        if self.chief:
            self.metrics.add({"event": "evaluation", "step": step, "evalLoss": value})
            say(f"step {step}: validation loss {value:.4f}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saving += time.monotonic() - self._entered
        if self.chief:
            self.metrics.committed(state.global_step)
