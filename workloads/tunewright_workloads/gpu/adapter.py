"""The LoRA adapter in PyTorch: the same projections, sizes and start as the JAX program's.

On local layers Tunix fuses K and V, so that its adapter has one A for both. Here `v_proj` shares
`k_proj`'s A, or the two programs would not train the same parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import nn

from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.names import Projection, projections
from tunewright_workloads.gemma.start import start


def adapted(arch: Architecture, config: AdapterConfig) -> list[Projection]:
    """The projections that the targets name."""
    return [p for p in projections(arch) if set(p.targets) & set(config.targets)]


def apply(model: nn.Module, arch: Architecture, config: AdapterConfig, seed: int) -> PeftModel:
    """Adds the adapter in float32. Raises UserError naming a projection that the model lacks."""
    chosen = adapted(arch, config)
    wanted = {name.removesuffix(".weight") for p in chosen for name in p.weights}
    matched = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and _below(n) in wanted]
    missing = wanted - {_below(n) for n in matched}
    if missing:
        raise UserError(Fault("adapter.targets", f"the PyTorch model has no module {sorted(missing)[0]}"))
    peft = get_peft_model(
        model,
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # PEFT divides; a float is as good
            lora_dropout=config.dropout,
            target_modules=matched,
            bias="none",
            task_type="CAUSAL_LM",
        ),
        autocast_adapter_dtype=True,
    )
    modules = lora_modules(peft)
    for p in chosen:
        names = [w.removesuffix(".weight") for w in p.weights]
        first = modules[names[0]]
        with torch.no_grad():
            first.lora_A["default"].weight.copy_(
                torch.from_numpy(start(p.path, math.prod(p.inputs), config.rank, seed).T)
            )
        for other in names[1:]:
            modules[other].lora_A["default"].weight = first.lora_A["default"].weight
    return peft


def lora_modules(model: nn.Module) -> dict[str, Any]:
    """PEFT's LoRA layers by Hugging Face name without prefix, `layers.0.self_attn.q_proj`."""
    return {_below(n): m for n, m in model.named_modules() if hasattr(m, "lora_A") and "default" in m.lora_A}


def export(state: Mapping[str, torch.Tensor], config: AdapterConfig, base: str, directory: Path) -> None:
    """Writes a PEFT directory that PEFT, vLLM and `tunewright merge` read.

    state: full (unsharded) tensors by PEFT's names. A K = V layer has a k_proj and no v_proj, as
    PEFT itself trains it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name.replace(".default", ""): value.to(torch.float32) for name, value in sorted(state.items())}
    for name in [n for n in tensors if n.endswith("k_proj.lora_A.weight")]:
        shared = name.replace("k_proj", "v_proj")  # trained as one A, two in PEFT's format
        if shared.replace("lora_A", "lora_B") in tensors:
            tensors[shared] = tensors[name].clone()
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[1] for name in tensors})
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(directory))


_PREFIX = re.compile(r"^.*?(?=layers\.\d+\.)")


def _below(name: str) -> str:
    return _PREFIX.sub("", name)
