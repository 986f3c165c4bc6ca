from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import architecture, load, lora, tiny
from tunewright_workloads.train.program import Program


class Adapted(NamedTuple):
    """A tiny Gemma 4 with an adapter that changes something: B is not zero."""

    program: Program
    adapter: dict[str, Any]
    arch: architecture.Architecture
    mesh: Mesh


def adapt(directory: Path, variant: str) -> Adapted:
    tiny.write(directory, variant=variant)  # type: ignore[arg-type]
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        model = load.load(directory, mesh=mesh, param_dtype=jnp.float32, compute_dtype=jnp.float32)
        model = lora.apply(model, AdapterConfig(rank=4, alpha=8), seed=0, mesh=mesh)
        leaves, form = jax.tree.flatten(lora.tree(model))
        rng = np.random.default_rng(1)
        moved = [
            jax.device_put(x + 0.05 * rng.standard_normal(x.shape, np.float32), x.sharding) for x in leaves
        ]
        tree = jax.tree.unflatten(form, moved)
        return Adapted(Program(model, mesh, jnp.float32), tree, architecture.read(directory), mesh)


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return adapt(tmp_path_factory.mktemp("base") / "dense", "dense")


@pytest.fixture(scope="session", params=["dense", "ple"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """Both architectures: plain, and with per-layer inputs and shared K and V."""
    if request.param == "dense":
        return request.getfixturevalue("adapted")
    return adapt(tmp_path_factory.mktemp("base") / request.param, request.param)
