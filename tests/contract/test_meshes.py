"""A mesh that the API lets pass is one that the trainer takes, and the same one is chosen for `auto`."""

from __future__ import annotations

import pytest

from tunewright_workloads.contract import meshes
from tunewright_workloads.contract.configs import MeshConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.models import MODELS, ModelSpec
from tunewright_workloads.gemma import layout
from tunewright_workloads.gemma.architecture import CLASSES, Architecture
from tunewright_workloads.train import mesh

DENSE = [m for m in MODELS.values() if not m.experts]


def architecture(model: ModelSpec) -> Architecture:
    """What the workload would read from the checkpoint's config.json."""
    return Architecture(
        class_name=CLASSES[0],
        layers=model.layers,
        globals=tuple(model.is_global(i) for i in range(model.layers)),
        embed=model.embed,
        hidden=model.hidden,
        heads=model.heads,
        local_kv_heads=model.local_kv_heads,
        global_kv_heads=model.global_kv_heads,
        head_dim=model.head_dim,
        global_head_dim=model.global_head_dim,
        window=model.window,
        vocab=model.vocab,
        k_eq_v=model.k_eq_v,
        kv_shared_layers=model.kv_shared_layers,
        wide=model.wide_hidden is not None,
        ple=model.ple,
    )


@pytest.mark.parametrize("model", DENSE, ids=lambda model: model.name)
def test_catalog_and_config_agree_on_what_divides(model: ModelSpec) -> None:
    arch = architecture(model)
    for fsdp in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512):
        for tp in (1, 2, 3, 4, 8, 16):
            ours = meshes.problem(model, fsdp, tp)
            theirs = layout.faults(arch, {"fsdp": fsdp, "tp": tp})
            assert (ours is None) == (not theirs), (fsdp, tp, ours, theirs)


@pytest.mark.parametrize("model", DENSE, ids=lambda model: model.name)
def test_auto_is_the_same_mesh_before_and_after_the_slice_is_bought(model: ModelSpec) -> None:
    arch = architecture(model)
    for devices in (1, 2, 4, 8, 16, 64, 256):
        for rows in (1, 2, 6, 8, 16, 48, 256):
            found = meshes.layouts(model, devices, rows)
            config = MeshConfig(accelerator="v6e", topology="2x4")
            if found:
                assert mesh.choose(config, arch, devices, rows) == found[0]
            else:
                with pytest.raises(UserError):
                    mesh.choose(config, arch, devices, rows)
