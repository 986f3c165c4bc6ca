"""The 31B's training step by the real TPU compiler: two of its layers, on v5p 2x2x1.

Needs libtpu (`make install-tpu`, or the interpreter that runs the tests); no TPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunewright_workloads import preflight

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
HERE = ROOT / ".venv-tpu" / "bin" / "python"

SCRIPT = """
import dataclasses, json
from tunewright_workloads.contract.configs import AdapterConfig, Schedule
from tunewright_workloads.preflight import compiler, shapes

# One sliding and one global layer; a quarter of the MLP and a small vocabulary, to compile in less time.
whole = shapes.architecture("gemma-4-31b", 6)
arch = dataclasses.replace(whole, layers=2, globals=(False, True), vocab=8192, hidden=5376)
schedule = Schedule(steps=10, global_batch_size=4, learning_rate=1e-4)
devices = compiler.devices("v5p", "2x2x1")
from tunewright_workloads.preflight import aot, hlo
step = aot.trace(arch, AdapterConfig(rank=64, alpha=64), schedule, devices, accelerator="v5p",
                 fsdp=4, tp=1, length=2048, kept=aot.remats.ALL)
compiled = compiler.compile_(step.traced)
found = aot.reading(compiled, arch, "v5p", 4, step.tokens, step.length)
kernels = hlo.read(compiled.text, compiler.RATES["v5p"]).kernels
print(json.dumps({
    "share": found.share, "seconds": found.seconds, "exposed": found.exposed, "attention": found.attention,
    "mfu": found.mfu, "network": found.network, "matmul": found.matmul, "traffic": found.traffic,
    "parameters": shapes.parameters(arch),
    "kernels": [[k.name, k.calls] for k in kernels], "top": found.top[:8], "compile": found.compile_seconds,
}))
"""


def interpreter() -> str | None:
    if importlib.util.find_spec("libtpu") is not None:
        return sys.executable
    return str(HERE) if HERE.exists() else None


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    python = interpreter()
    if python is None:
        pytest.skip("libtpu is not installed: `make install-tpu`")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(preflight.__file__).parents[2])}
    env.pop("XLA_FLAGS", None)
    done = subprocess.run([python, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.timeout(1600)
def test_the_step_compiles_and_fits(step: dict[str, Any]) -> None:
    assert 0 < step["share"] < 0.5
    assert 0 < step["attention"] < step["seconds"]
    assert 0.2 < step["mfu"] < 1


def test_each_layers_attention_runs_once_forward_and_once_backward(step: dict[str, Any]) -> None:
    calls = {
        phase: sum(n for name, n in step["kernels"] if f"_{phase}_" in name) for phase in ("fwd", "dq", "dkv")
    }
    assert calls == {"fwd": 2, "dq": 2, "dkv": 2}


def test_frozen_weights_go_round_under_the_matmuls(step: dict[str, Any]) -> None:
    """All weights pass each device forward and backward; what is gathered is small.

    Nothing is trained before the first layer's q, k and v: they are not passed on backward.
    """
    traffic = step["traffic"]
    layers = (step["parameters"] - 8192 * 5376) * 2
    first = 5376 * (32 + 16 + 16) * 256 * 2
    assert traffic["collective-permute"][1] == pytest.approx(0.75 * (2 * layers - first), rel=0.01)
    assert traffic.get("all-gather", [0, 0])[1] < 0.1 * layers
    # At 2,048 tokens a chip the matmuls are shorter than their weights' transfers: half of it must still hide.
    assert step["exposed"] < 0.5 * step["network"]


STOCK = """
import sys
sys.path.insert(0, "bench")
import dataclasses, jax, numpy as np
import aot as bench
from tunewright_workloads.preflight import aot, shapes

tiny = shapes.architecture("gemma-4-tiny")
arch = dataclasses.replace(tiny, layers=12, globals=(False, False, False, False, False, True) * 2)
mesh = aot.mesh(jax.devices()[:1], 1, 1)
draw = np.random.default_rng(0)

def filled(info):
    if np.issubdtype(info.dtype, np.integer) or info.dtype == bool:
        return np.ones(info.shape, info.dtype)
    return (draw.normal(size=info.shape) * 0.1).astype(info.dtype)

plain = bench.stock(arch, mesh, 2, 32, True)
a, moments, b, batch = jax.tree.map(filled, plain.args_info[0])
batch = (draw.integers(24, 1024, (2, 32)).astype(np.int32), batch[1], np.tile(np.arange(32, dtype=np.int32), (2, 1)),
         np.tril(np.ones((2, 32, 32), bool)))
moments = jax.tree.map(np.zeros_like, moments)

def stacked(tree):
    made = {}
    for path, value in tree.items():
        if path[0] != "layers":
            made[path] = value
        elif path[1] < 6:
            made[path] = np.stack([value, tree[(path[0], path[1] + 6, *path[2:])]])
    return made

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
one = plain.lower().compile(QUICK)(a, moments, b, batch)
scan = bench.stock(arch, mesh, 2, 32, False)
zeros = jax.tree.map(lambda i: np.zeros(i.shape, i.dtype), scan.args_info[0][1])
two = scan.lower().compile(QUICK)(stacked(a), zeros, stacked(b), batch)
np.testing.assert_allclose(float(one[2]), float(two[2]), rtol=2e-3)
want = stacked({path: np.asarray(value, np.float32) for path, value in one[0].items()})
before = stacked(a)
moved = 0
for path, value in two[0].items():
    np.testing.assert_allclose(np.asarray(value, np.float32), want[path], atol=2e-3, err_msg=str(path))
    moved += int(np.any(np.asarray(value) != before[path]))
assert moved == len(want), "some adapters got no gradient"
print("same")
"""


def test_the_benchmarks_scan_over_tunix_layers_is_tunix() -> None:
    """What the recipe is compiled as computes what Tunix computes, adapters and their gradients included."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(preflight.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", STOCK], env=env, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]
