"""The frozen base in PyTorch: the text decoder of any Gemma 4 checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, Gemma4ForCausalLM

from tunewright_workloads.contract.faults import Fault, UserError


def load(directory: Path, dtype: torch.dtype, *, spread: bool = False) -> nn.Module:
    """The decoder with its head, frozen. Vision and audio towers are not built.

    spread: its layers one after the other over all GPUs of this machine, in one process.
    Raises UserError naming a tensor that the checkpoint lacks.
    """
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    mapping = None if text is config else {r"^model\.language_model\.": "model."}
    model, info = Gemma4ForCausalLM.from_pretrained(
        directory,
        config=text,
        dtype=dtype,
        attn_implementation="sdpa",
        key_mapping=mapping,
        output_loading_info=True,
        low_cpu_mem_usage=True,
        device_map="auto" if spread else None,
    )
    missing = sorted(n for n in info["missing_keys"] if not n.startswith("lm_head."))
    if missing:
        raise UserError(
            Fault(
                str(directory),
                f"lacks the tensor {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            )
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    decoder: nn.Module = model
    return decoder
