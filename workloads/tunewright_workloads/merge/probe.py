"""Runs the merged model once, before it is published: does it compute what base + adapter computes?

A process of its own, because it needs JAX and the whole model in memory: it is started where both
fit, and the merge itself stays small. The prompts' greedy tokens and log-probabilities go into the
manifest, for the gate that later asks a server the same.

    python -m tunewright_workloads.merge.probe --merged DIR --out FILE [--base DIR --adapter DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunewright_workloads import storage
from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.gemma.architecture import Architecture

OVERHEAD = 1.2e9
"""bytes that JAX, its compiler and the activations of a few prompts take beside the weights"""

TOLERANCES = {"F64": (2e-3, 2e-4), "F32": (2e-3, 2e-4), "F16": (0.1, 0.02), "BF16": (0.6, 0.1)}
"""Nats of log-probability, at most and in the mean, by the narrowest dtype that a changed weight was
rounded to. Float32 holds the sums in another order; the others are the rounding of the weights."""


@dataclass(frozen=True)
class Difference:
    """Log-probabilities (nats) over all tokens of all prompts' positions.

    worst, mean: |merged - (base + adapter)|. effect: mean |(base + adapter) - base|, what the adapter does.
    """

    worst: float
    mean: float
    effect: float

    def fault(self, dtype: str) -> str | None:
        """Why the merged model is not base + adapter, or None."""
        worst, mean = TOLERANCES[dtype]
        told = f"off by {self.mean:.3g} nats in the mean, {self.worst:.3g} at most; the adapter's effect is {self.effect:.3g}"
        if not (self.worst <= worst and self.mean <= mean):
            return f"the merged model does not compute what base + adapter does: {told}"
        if self.mean > max(0.5 * self.effect, TOLERANCES["F32"][1]):
            return f"rounding to {dtype} swallows most of what the adapter does: {told}"
        return None


@dataclass(frozen=True)
class Result:
    probes: list[Probe]
    difference: Difference | None


def fits(weights: int) -> str | None:
    """None where a model with files of `weights` bytes can be run here in float32, else why not."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed here"
    need, have = OVERHEAD + 2 * weights, available()
    if need > have:
        return f"running it in float32 takes about {need / 1e9:.1f} GB and {have / 1e9:.1f} GB are free"
    return None


def available() -> int:
    """Bytes of memory that this process may still take, by its control group and by the machine."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = [int(line.split()[1]) * 1024]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # no such group, or "max"
    return min(free)


def streams(arch: Architecture, width: int) -> str | None:
    """None where a model of weights of `width` bytes can pass through here layer by layer, else why not."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed here"
    from tunewright_workloads.serve import probes

    need, have = OVERHEAD + probes.memory(arch, width), available()
    if need > have:
        return f"a pass layer by layer takes about {need / 1e9:.1f} GB and {have / 1e9:.1f} GB are free"
    return None


def stream(uri: str, small: Path) -> Result | None:
    """Probes of the finished model at `uri`, read once, layer by layer; None when the process was killed.

    small: the directory with its configuration and tokenizer. Raises RuntimeError with what it said.
    """
    return _start(["--streamed", uri, "--merged", str(small)])


def run(merged: Path, base: Path | None, adapter: Path | None) -> Result | None:
    """Starts the process; None when it was killed, most likely for memory.

    Raises RuntimeError with what it said when it failed.
    """
    options = ["--merged", str(merged)]
    if base is not None and adapter is not None:
        options += ["--base", str(base), "--adapter", str(adapter)]
    return _start(options)


def _start(options: list[str]) -> Result | None:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "probes.json"
        command = [sys.executable, "-m", "tunewright_workloads.merge.probe", *options, "--out", str(out)]
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        done = subprocess.run(
            command, env={**environment, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
        )
        if done.returncode in (-9, 137):
            return None
        if done.returncode:
            raise RuntimeError(f"the finished model could not be run: {done.stderr.strip()[-2000:]}")
        data = json.loads(out.read_text(encoding="utf-8"))
    difference = data["difference"]
    return Result(
        [Probe.model_validate(p) for p in data["probes"]], Difference(**difference) if difference else None
    )


def compare(merged: Path, base: Path, adapter: Path, probes: list[Probe]) -> Difference:
    """The merged weights, the base and the base with the adapter as the trainer applies it, in float32.

    adapter: a step's directory with `adapter` and `state`.
    """
    import jax
    from flax import nnx

    from tunewright_workloads.contract.configs import AdapterConfig
    from tunewright_workloads.gemma import load, lora
    from tunewright_workloads.merge import checkpoint

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    rows = [p.prompt_tokens + p.tokens for p in probes]
    T = max(map(len, rows))
    ids = np.zeros((len(rows), T), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    real = np.arange(T)[None] < np.array([[len(row)] for row in rows])
    with mesh:
        model = load.load(base, mesh=mesh, param_dtype="float32", compute_dtype="float32")
        graph, weights = nnx.split(model)
        bare = _program(graph)
        plain = np.asarray(bare(weights, ids))
        state = checkpoint.state(adapter)
        config = AdapterConfig(rank=state["rank"], alpha=state["alpha"], targets=tuple(state["targets"]))
        model = lora.apply(model, config, seed=0, mesh=mesh)
        lora.restore(model, checkpoint.tree(adapter))
        graph, weights = nnx.split(model)
        want = np.asarray(_program(graph)(weights, ids))
        del model, weights
        merged_model = load.load(merged, mesh=mesh, param_dtype="float32", compute_dtype="float32")
        got = np.asarray(bare(nnx.split(merged_model)[1], ids))
    off, effect = np.abs(got - want)[real], np.abs(want - plain)[real]
    return Difference(float(off.max()), float(off.mean()), float(effect.mean()))


def _program(graph: Any) -> Any:
    """(state, ids [B, T]) -> log-probabilities [B, T, V] under a causal mask.

    Padding stands at the end, where nothing looks.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    def forward(state: Any, ids: jax.Array) -> jax.Array:
        B, T = ids.shape
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))
        positions = jnp.broadcast_to(jnp.arange(T), (B, T))
        logits = nnx.merge(graph, state)(ids, positions, None, mask)[0]
        return jax.nn.log_softmax(logits.astype(jnp.float32), -1)

    return jax.jit(forward)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tunewright_workloads.merge.probe", description=__doc__.split("\n")[0])
    parser.add_argument("--merged", type=Path, required=True)
    parser.add_argument(
        "--streamed", metavar="URI", help="the weights, read layer by layer; --merged then holds the rest"
    )
    parser.add_argument("--base", type=Path)
    parser.add_argument("--adapter", type=Path, help="a committed step: adapter/ and state/ below it")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    from tunewright_workloads.serve import probes

    if options.streamed:
        from tunewright_workloads.serve.streamed import Far

        found = probes.streamed(options.merged, Far(storage.store(options.streamed)))
    else:
        found = probes.record(options.merged)
    difference = None
    if found and options.base and options.adapter:
        difference = asdict(compare(options.merged, options.base, options.adapter, found))
    data = {"probes": [p.model_dump(by_alias=True) for p in found], "difference": difference}
    options.out.write_text(json.dumps(data), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
