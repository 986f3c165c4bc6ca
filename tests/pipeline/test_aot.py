"""The 31B's training step by the real TPU compiler: two of its layers, on v5p 2x2x1, 2x2x2 and v6e 2x4.

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
from tunewright_workloads.gemma import tiny

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


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A process of the interpreter that has libtpu."""
    python = interpreter()
    if python is None:
        pytest.skip("libtpu is not installed: `make install-tpu`")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(preflight.__file__).parents[2])}
    env.pop("XLA_FLAGS", None)
    return subprocess.run(
        [python, *arguments], env=env | more, capture_output=True, text=True, timeout=1500, check=False
    )


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    done = run("-c", SCRIPT)
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


QUICK = {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}
"""The compiler searches less for what is fast: a quarter of the time, the same checks of what is possible."""

OTHERS = """
import dataclasses, json
from tunewright_workloads.contract.configs import AdapterConfig, Schedule
from tunewright_workloads.preflight import compiler, shapes
whole = shapes.architecture("gemma-4-31b", 6)
for accelerator, topology, base, layers in (
    ("v5p", "2x2x2", "none", (False, True)), ("v6e", "2x4", "none", (False, True)),
    ("v5p", "2x2x1", "int8", (False,)), ("v5p", "2x2x1", "nf4", (False,)),
):
    arch = dataclasses.replace(whole, layers=len(layers), globals=layers, vocab=1024, hidden=5376)
    devices = compiler.devices(accelerator, topology)
    from tunewright_workloads.preflight import aot, hlo
    fsdp = len(devices)
    schedule = Schedule(steps=10, global_batch_size=fsdp, learning_rate=1e-4)
    adapter = AdapterConfig(rank=64, alpha=64, quantize_base=base)
    step = aot.trace(arch, adapter, schedule, devices, accelerator=accelerator, fsdp=fsdp, tp=1, length=512,
                     kept=aot.remats.ALL)
    compiled = compiler.compile_(step.traced)
    found = aot.reading(compiled, arch, accelerator, fsdp, step.tokens, step.length)
    print(json.dumps({
        "slice": f"{accelerator} {topology}", "base": base, "kind": devices[0].device_kind, "devices": fsdp,
        "hosts": len({device.process_index for device in devices}), "traffic": found.traffic,
        "arguments": found.memory.arguments, "resident": aot.remats.resident(arch, adapter, fsdp, 1),
        "kernels": sum(k.calls for k in hlo.read(compiled.text, compiler.RATES[accelerator]).kernels),
        "weights": 2 * (shapes.parameters(arch) - 1024 * 5376), "first": 5376 * (32 + 16 + 16) * 256 * 2,
    }))
"""


@pytest.fixture(scope="module")
def others() -> dict[tuple[str, str], dict[str, Any]]:
    """By slice and kind of base."""
    done = run("-c", OTHERS, **QUICK)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(row["slice"], row["base"]): row for row in rows}


@pytest.mark.parametrize(("place", "kind"), [("v5p 2x2x2", "TPU v5"), ("v6e 2x4", "TPU v6 lite")])
@pytest.mark.timeout(1600)
def test_slices_of_two_hosts_hand_the_weights_round(
    others: dict[tuple[str, str], dict[str, Any]], place: str, kind: str
) -> None:
    row = others[place, "none"]
    assert (row["kind"], row["devices"], row["hosts"], row["kernels"]) == (kind, 8, 2, 6)
    sent = row["traffic"]["collective-permute"][1]
    assert sent == pytest.approx(7 / 8 * (2 * row["weights"] - row["first"]), rel=0.01)
    assert row["arguments"] == pytest.approx(row["resident"], rel=0.02)


@pytest.mark.parametrize("base", ["int8", "nf4"])
@pytest.mark.timeout(1600)
def test_of_a_quantized_base_the_codes_are_gathered(
    others: dict[tuple[str, str], dict[str, Any]], base: str
) -> None:
    """Not in a ring: each weight is whole where it is turned back into numbers."""
    row = others["v5p 2x2x1", base]
    assert "collective-permute" not in row["traffic"] and row["kernels"] == 3
    assert row["arguments"] == pytest.approx(row["resident"], rel=0.02)
    # Codes and not weights: int8 moves fewer bytes than one pass of the weights, nf4 half as many.
    whole = 0.75 * row["weights"]
    assert row["traffic"]["all-gather"][1] < {"int8": 0.6, "nf4": 0.3}[base] * whole


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with nothing but its config.json: two layers with heads as large models have them."""
    place = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 256, "global_head_dim": 512,
             "num_attention_heads": 4, "num_hidden_layers": 2, "sliding_window": 512,
             "max_position_embeddings": 1 << 20, "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    (place / "config.json").write_text(json.dumps(tiny.text_config("dense") | sizes))
    return place


def asked(tmp_path: Path, model: Path, **training: Any) -> tuple[int, dict[str, Any], str]:
    """(exit code, result, stderr) of the preflight command with the compiler."""
    file = tmp_path / "preflight.json"
    file.write_text(json.dumps({
        "job": "team/small", "model": {"name": "custom", "source": f"file://{model}"},
        "adapter": {"rank": 16, "alpha": 16}, "dataset": {"train": ["gs://bucket/rows.jsonl"], "maxLength": 512},
        "training": {"steps": 10, "globalBatchSize": 4, "learningRate": 1e-4, **training},
        "mesh": {"accelerator": "v5p", "topology": "2x2x1"},
    }))  # fmt: skip
    done = run("-m", "tunewright_workloads.preflight", "--config", str(file), **QUICK)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.timeout(1600)
def test_the_preflight_command_compiles_the_step(small: Path, tmp_path: Path) -> None:
    code, result, told = asked(tmp_path, small)
    assert code == 0, told
    made = result["compiled"]
    assert result["fits"] and "notCompiled" not in result
    assert made["argumentsGib"] == pytest.approx(result["residentGib"], abs=0.02)
    assert (
        0 < made["peakShare"] < 0.05 and 0 < made["modelledStepSeconds"] < 1 and 0 < made["modelledMfu"] < 1
    )


@pytest.mark.timeout(1600)
def test_the_preflight_command_ends_in_2_where_the_compiler_says_that_it_does_not_fit(
    small: Path, tmp_path: Path
) -> None:
    """The arithmetic was fitted to the 31B: of a model as small as this one it expects too little."""
    rows = 4 * 5432  # by the arithmetic 95.72 of 95.74 GiB
    code, result, told = asked(tmp_path, small, globalBatchSize=rows, remat="none")
    assert code == 2 and not result["fits"] and result["compiled"] is None
    assert result["residentGib"] + result["temporariesGib"] < result["deviceGib"]
    assert "training: does not fit, says the compiler" in told, told
    assert "RESOURCE_EXHAUSTED" in told and "Use a smaller training.microBatchSize" in told
    assert "Traceback" not in told


STOCK = """
import sys
sys.path.insert(0, "bench")
import dataclasses, jax, numpy as np
import aot as bench
from tunewright_workloads.preflight import aot, shapes

tiny = shapes.architecture("gemma-4-tiny")
arch = dataclasses.replace(tiny, layers=4, globals=(False, True) * 2)
bench.GROUP = 2
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
        elif path[1] < 2:
            made[path] = np.stack([value, tree[(path[0], path[1] + 2, *path[2:])]])
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
