"""The loss on the validation rows, token-weighted, as the JAX program computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.gpu import base
from tunewright_workloads.gpu.rows import IGNORED, Collator


@torch.no_grad()
def loss(model: nn.Module, batches: Batches, window: int, rank: int, world: int, device: Any) -> float:
    """Mean over all targets of the data set, nats. Each process takes its share of every batch's rows.

    One row at a time: the logits of a row are 3 GiB where the vocabulary is 262,144 and the row 3,072
    tokens long. A collective when `world` > 1: every process must call it.
    """
    collator, total = Collator(batches, window), torch.zeros(2, dtype=torch.float64, device=device)
    share = batches.batch_size // world
    training = model.training
    model.eval()
    for step in range(batches.steps_in(0)):
        batch = batches.at(step)
        for row in range(rank * share, (rank + 1) * share):
            inputs = _to(collator.inputs(*batch.rows(slice(row, row + 1)).arrays().values()), device)
            labels = inputs.pop("labels")[:, 1:]
            logits = model(**inputs, use_cache=False).logits[:, :-1].float()
            total[0] += nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]),
                labels.reshape(-1),
                ignore_index=IGNORED,
                reduction="sum",
            )
            total[1] += (labels != IGNORED).sum()
    model.train(training)
    if world > 1:
        torch.distributed.all_reduce(total)
    return float(total[0] / total[1])


def published_loss(directory: Path, batches: Batches, window: int, dtype: str, *, cpu: bool = False) -> float:
    """The mean loss of a merged model, nats, its layers spread over the GPUs of this machine.

    cpu: on the CPU, to compare. Raises UserError where there is no GPU.
    """
    if cpu:
        return loss(base.load(directory, getattr(torch, dtype)), batches, window, 0, 1, "cpu")
    if not torch.cuda.is_available():
        rule = "is a GPU, and PyTorch sees none here"
        raise UserError(Fault("mesh.accelerator", rule, None, "Run it on a node with GPUs and their driver."))
    return loss(base.load(directory, getattr(torch, dtype), spread=True), batches, window, 0, 1, "cuda:0")


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({k: _to(v, device) for k, v in value.items()})
    return value.to(device)
