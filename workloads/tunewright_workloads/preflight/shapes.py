"""A catalog model's architecture without its config.json, and with fewer layers for quick looks."""

from __future__ import annotations

import dataclasses

from tunewright_workloads.contract import models
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gemma.architecture import CLASSES, MOE_REASON, Architecture


def architecture(name: str, layers: int | None = None) -> Architecture:
    """layers: a part of the model, whole patterns of it; None: all.

    Raises UserError for what is not in the catalog, mixtures of experts, and parts that leave a
    pattern or K and V sharing broken.
    """
    spec = models.model(name)
    if spec.experts:
        raise UserError(Fault("model.name", MOE_REASON, name))
    whole = Architecture(
        class_name=CLASSES[0],
        layers=spec.layers,
        globals=tuple(spec.is_global(i) for i in range(spec.layers)),
        embed=spec.embed,
        hidden=spec.hidden,
        heads=spec.heads,
        local_kv_heads=spec.local_kv_heads,
        global_kv_heads=spec.global_kv_heads,
        head_dim=spec.head_dim,
        global_head_dim=spec.global_head_dim,
        window=spec.window,
        vocab=spec.vocab,
        k_eq_v=spec.k_eq_v,
        kv_shared_layers=spec.kv_shared_layers,
        wide=spec.wide_hidden is not None,
        ple=spec.ple,
        max_positions=spec.max_context,
    )
    if layers is None or layers == whole.layers:
        return whole
    period = spec.global_every
    if layers < 1 or layers > whole.layers or layers % period or whole.kv_shared_layers:
        rule = f"must be a multiple of {period} up to {whole.layers}"
        if whole.kv_shared_layers:
            rule = (
                f"must be all {whole.layers}: the last {whole.kv_shared_layers} share K and V of earlier ones"
            )
        raise UserError(Fault("layers", rule, str(layers)))
    return dataclasses.replace(whole, layers=layers, globals=whole.globals[:layers])


def parameters(arch: Architecture) -> int:
    """Elements of the text decoder, the embedding once."""
    from tunewright_workloads.gemma import names

    total = 0
    for shape in names.tensors(arch).values():
        size = 1
        for n in shape:
            size *= n
        total += size
    return total
