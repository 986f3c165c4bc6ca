"""Checkpoints of the PyTorch program: `<checkpoints>/<step>/`, whole or not there at all.

adapter.safetensors  the trained parameters, unsharded float32
optimizer.pt         moments and step count by parameter, unsharded; and torch's random state
trainer_state.json   the trainer's own record, from which it knows where to go on
evaluation.json      the loss on the validation rows at this step, where it was measured

The newest ones are kept, and the one with the least validation loss.

Unsharded, so that a run goes on with another number of processes than it was saved by.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

EVALUATION = "evaluation.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The adapter's parameters by name; one that two modules share comes once."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The unsharded value on the CPU. A collective: every process must call it."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().to("cpu", copy=True).contiguous()


def like(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`value` sharded, placed and typed as `target` is."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        return distribute_tensor(value, target.device_mesh, target.placements)
    return value


def adapter(model: nn.Module) -> dict[str, torch.Tensor]:
    """All adapter tensors, unsharded. A collective."""
    return {name: whole(parameter) for name, parameter in trained(model)}


def save(
    root: Path, model: nn.Module, optimizer: Any, state: Any, keep: int, chief: bool, loss: float | None
) -> None:
    """Saves the current step under a temporary name and renames it. A collective; the chief writes.

    loss: on the validation rows at this very step, nats, if it was measured.
    """
    weights = adapter(model)
    held = _states(optimizer)
    moments = {
        name: {**{m: whole(held[p][m]) for m in MOMENTS}, "step": held[p]["step"].to("cpu", copy=True)}
        for name, p in trained(model)
        if p in held
    }
    if not chief:
        return
    final = root / str(state.global_step)
    temporary = root / f".{state.global_step}.{os.getpid()}"
    temporary.mkdir(parents=True)
    save_file(weights, str(temporary / "adapter.safetensors"))
    torch.save({"moments": moments, "random": torch.get_rng_state()}, temporary / "optimizer.pt")
    state.save_to_json(str(temporary / "trainer_state.json"))
    if loss is not None:
        (temporary / EVALUATION).write_text(json.dumps({"evalLoss": loss}))
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    least = best(root)
    for old in sorted(_steps(root), key=lambda p: int(p.name))[:-keep]:
        if int(old.name) != least:
            shutil.rmtree(old)


def evaluated(directory: Path) -> float | None:
    """The validation loss of a checkpoint, None where it was not measured."""
    path = directory / EVALUATION
    return float(json.loads(path.read_text())["evalLoss"]) if path.exists() else None


def best(root: Path) -> int | None:
    """The step of the least validation loss among the checkpoints, the newest of equals."""
    known = [(loss, -int(p.name)) for p in _steps(root) if (loss := evaluated(p)) is not None]
    return -min(known)[1] if known else None


def load_adapter(directory: Path, model: nn.Module) -> None:
    values = load_file(str(directory / "adapter.safetensors"))
    with torch.no_grad():
        for name, parameter in trained(model):
            parameter.copy_(like(values[_plain(name, values)], parameter))


def load_optimizer(directory: Path, model: nn.Module, optimizer: Any) -> None:
    saved = torch.load(directory / "optimizer.pt", map_location="cpu", weights_only=True)["moments"]
    held = _states(optimizer)
    for name, parameter in trained(model):
        moments = saved[_plain(name, saved)]
        held[parameter] = {**{m: like(moments[m], parameter) for m in MOMENTS}, "step": moments["step"]}


def load_random(directory: Path) -> None:
    torch.set_rng_state(
        torch.load(directory / "optimizer.pt", map_location="cpu", weights_only=True)["random"]
    )


def newest(root: Path) -> Path | None:
    """The newest checkpoint."""
    return max(_steps(root), key=lambda p: int(p.name), default=None)


def sweep(root: Path) -> None:
    """Removes what a killed save left."""
    for path in root.glob(".*.*") if root.is_dir() else ():
        shutil.rmtree(path)


def _steps(root: Path) -> list[Path]:
    return [p for p in root.iterdir() if p.name.isdigit()] if root.is_dir() else []


def _states(optimizer: Any) -> Any:
    """The state by parameter of the optimizer itself, whatever wraps it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer.state


def _plain(name: str, known: dict[str, Any]) -> str:
    """The saved name of a parameter: wrappers put `module.` in front of it."""
    return name if name in known else name.removeprefix("module.")
