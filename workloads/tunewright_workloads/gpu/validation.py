"""The loss on the validation rows, token-weighted, as the JAX program computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tunewright_workloads.data.batches import Batches
from tunewright_workloads.gpu.rows import IGNORED, Collator


@torch.no_grad()
def loss(model: nn.Module, batches: Batches, window: int, rank: int, world: int, device: Any) -> float:
    """Mean over all targets of the data set, nats. Each process takes its share of every batch's rows.

    A collective when `world` > 1: every process must call it.
    """
    collator, total = Collator(batches, window), torch.zeros(2, dtype=torch.float64, device=device)
    share = batches.batch_size // world
    mine = slice(rank * share, (rank + 1) * share)
    training = model.training
    model.eval()
    for step in range(batches.steps_in(0)):
        fields = batches.at(step).rows(mine).arrays()
        inputs = _to(collator.inputs(*fields.values()), device)
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs, use_cache=False).logits[:, :-1].float()
        total[0] += nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
        )
        total[1] += (labels != IGNORED).sum()
    model.train(training)
    if world > 1:
        torch.distributed.all_reduce(total)
    return float(total[0] / total[1])


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({k: _to(v, device) for k, v in value.items()})
    return value.to(device)
