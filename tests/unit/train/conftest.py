from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import architecture, program, stages, tiny
from tunewright_workloads.train.program import Program


class Adapted(NamedTuple):
    """A tiny Gemma 4 with an adapter that changes something: B is not zero."""

    program: Program
    adapter: Any
    arch: architecture.Architecture
    mesh: Mesh


def adapt(directory: Path, variant: str) -> Adapted:
    tiny.write(directory, variant=variant)  # type: ignore[arg-type]
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    config = AdapterConfig(rank=4, alpha=8)
    with mesh:
        arch, base = stages.load(directory, mesh=mesh, dtype="float32")
        rng = np.random.default_rng(1)
        adapter = jax.tree.map(
            lambda x: jax.device_put(x + 0.05 * rng.standard_normal(x.shape, np.float32), x.sharding),
            stages.init(arch, config, seed=0, mesh=mesh),
        )
        settings = program.Settings.of(arch, config, mesh=mesh, compute_dtype="float32")
        return Adapted(Program(base, settings, mesh), adapter, arch, mesh)


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return adapt(tmp_path_factory.mktemp("base") / "dense", "dense")


@pytest.fixture(scope="session", params=["dense", "ple"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """Both architectures: plain, and with per-layer inputs and shared K and V."""
    if request.param == "dense":
        return request.getfixturevalue("adapted")
    return adapt(tmp_path_factory.mktemp("base") / request.param, request.param)
