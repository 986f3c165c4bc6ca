"""Merge: ours beside a plain copy, PEFT's merge_and_unload + save_pretrained, and Tunix's saver.

    PYTHONPATH=workloads python bench/merge.py [--gb 4 --gb 8 --gb 16] [--dir DIR]

Synthetic bfloat16 checkpoints with Gemma 4 31B's tensor shapes and fewer layers, a random adapter of
all seven projections, on the disk of --dir. Every measure is a process of its own, ends when the
bytes are on the disk (fsync), and runs after a sync; wall time is the best of --repeat, peak RSS the
largest. PEFT and Tunix hold the model in memory: they run at the sizes for which there is enough.
The last line is JSON: wall_vs_cp (the worst of all sizes), speedup_vs_peft, peak_rss_mb (a list).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EMBED, HIDDEN, HEADS, VOCAB = 5376, 21504, 32, 262144
LOCAL, GLOBAL = (16, 256), (4, 512)
"""kv heads and head size of sliding and of global layers"""
SHARD = 2_000_000_000

SYNCED_COPY = """
import os, subprocess, sys
subprocess.run(["cp", "-r", sys.argv[1], sys.argv[2]], check=True)
for folder, _, files in os.walk(sys.argv[2]):
    for name in files:
        number = os.open(os.path.join(folder, name), os.O_RDONLY); os.fsync(number); os.close(number)
"""

PEFT = """
import os, sys, torch, transformers, peft
base, adapter, out = sys.argv[1:4]
torch.set_num_threads(os.cpu_count())
model = transformers.Gemma4ForConditionalGeneration.from_pretrained(base, dtype=torch.bfloat16)
model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
model.save_pretrained(out)
for name in os.listdir(out):
    number = os.open(os.path.join(out, name), os.O_RDONLY); os.fsync(number); os.close(number)
"""

TUNIX = """
import os, sys, json, jax, jax.numpy as jnp, numpy as np
from flax import nnx
from pathlib import Path
from tunix.models import safetensors_saver
from tunewright_workloads.gemma import architecture, names
from tunewright_workloads.merge import checkpoint
base, step, out = sys.argv[1:4]
arrays = checkpoint._Arrays(Path(step) / "adapter")
class Pair(nnx.Module):
    def __init__(self, a, b):
        self.w_lora_a, self.w_lora_b = nnx.LoRAParam(a), nnx.LoRAParam(b)
class Model(nnx.Module):
    pass
model, keys = Model(), {}
for i, p in enumerate(names.projections(architecture.read(base))):
    a, b = arrays.read(f"{p.path}.{p.a}"), arrays.read(f"{p.path}.{p.b}")
    rank = a.shape[-1]
    for j, weight in enumerate(p.weights):
        part = b.reshape(rank, len(p.weights), -1)[:, j]
        setattr(model, f"m{i}_{j}", Pair(jnp.asarray(a.reshape(-1, rank)), jnp.asarray(part)))
        keys[f"m{i}_{j}"] = "model.language_model." + weight
safetensors_saver.save_lora_merged_model_as_safetensors(
    base, out, model, rank, rank, keys.__getitem__, transpose_rules={"": (1, 0)})
for name in os.listdir(out):
    number = os.open(os.path.join(out, name), os.O_RDONLY); os.fsync(number); os.close(number)
"""


def layers_of(gb: float) -> int:
    """Layers so that the checkpoint has about `gb` * 10^9 bytes; the embedding alone has 2.8."""
    layer = 2 * (EMBED * (HEADS * 256 * 2 + 16 * 256 * 2) + 3 * EMBED * HIDDEN)
    return max(1, round((gb * 1e9 - 2 * VOCAB * EMBED) / layer))


def config(layers: int) -> dict[str, Any]:
    """config.json of a 31B with fewer layers, as transformers writes it; every sixth and the last global."""
    kinds = [
        "sliding_attention" if (i + 1) % 6 and i + 1 < layers else "full_attention" for i in range(layers)
    ]
    text = {
        "model_type": "gemma4_text", "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB,
        "hidden_size": EMBED, "intermediate_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": LOCAL[0], "num_global_key_value_heads": GLOBAL[0],
        "head_dim": LOCAL[1], "global_head_dim": GLOBAL[1], "attention_k_eq_v": True, "layer_types": kinds,
        "sliding_window": 1024, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True,
        "use_bidirectional_attention": None, "enable_moe_block": False, "use_double_wide_mlp": False,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
        },
        "dtype": "bfloat16",
    }  # fmt: skip
    return {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text,
        "vision_config": None, "audio_config": None, "tie_word_embeddings": True, "dtype": "bfloat16",
    }  # fmt: skip


def write_base(directory: Path, layers: int) -> int:
    """Writes the checkpoint shard by shard; returns its size in bytes."""
    import ml_dtypes
    import numpy as np

    from tunewright_workloads.gemma import architecture, names
    from tunewright_workloads.merge import tensors

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config(layers), indent=2))
    shapes = {f"model.language_model.{n}": s for n, s in names.tensors(architecture.read(directory)).items()}
    groups: list[list[str]] = [[]]
    held = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        if groups[-1] and held + size > SHARD:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    noise = (np.random.default_rng(0).standard_normal(8 << 20) * 0.02).astype(ml_dtypes.bfloat16)
    mapped, total = {}, 0
    for i, group in enumerate(groups, 1):
        file = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        with (directory / file).open("wb") as out:
            out.write(tensors.write([(n, "BF16", shapes[n]) for n in group], {"format": "pt"}))
            for name in group:
                left = int(np.prod(shapes[name]))
                mapped[name] = file
                total += 2 * left
                while left:
                    out.write(noise[: min(left, len(noise))].view(np.uint8).data)
                    left -= min(left, len(noise))
    index = {"metadata": {"total_size": total}, "weight_map": mapped}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


ADAPTER = """
import sys
from pathlib import Path
import numpy as np, orbax.checkpoint as ocp
from tunewright_workloads import storage
from tunewright_workloads.gemma import architecture, names
base, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rng, tree = np.random.default_rng(1), {}
for p in names.projections(architecture.read(base)):
    at = tree
    for part in p.path.split("."):
        at = at.setdefault(part, {})
    for leaf, shape in zip((p.a, p.b), p.shapes(rank)):
        at[leaf] = (rng.standard_normal(shape) * 0.01).astype(np.float32)
with ocp.CheckpointManager(out / "checkpoints") as manager:
    state = {"step": 1, "rank": rank, "alpha": float(rank), "base_digest": storage.fingerprint(base)}
    manager.save(1, args=ocp.args.Composite(adapter=ocp.args.StandardSave(tree), state=ocp.args.JsonSave(state)))
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def ours(base: Path, adapter: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tunewright_workloads.merge", "--base", f"file://{base}", "--no-probes",
        "--adapter", f"file://{adapter}", "--output", f"file://{out}", "--dtype", "bfloat16", *more,
    ]  # fmt: skip


def measure(command: list[str], out: Path, repeat: int) -> tuple[float, float]:
    """(best wall seconds, largest peak RSS in MB) of a command that writes `out`."""
    walls, peaks = [], []
    for _ in range(repeat):
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        walls.append(time.perf_counter() - start)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command[:4]}: exit {process.returncode}: {said[-1500:]}")
        peaks.append(usage.ru_maxrss / 1000)
    shutil.rmtree(out, ignore_errors=True)
    return min(walls), max(peaks)


def free_memory() -> float:
    """GB that processes may still take."""
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024 / 1e9


def one(gb: float, top: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All measures of one size."""
    base, train, adapter, out = top / "base", top / "train", top / "adapter", top / "out"
    layers = layers_of(gb)
    size = write_base(base, layers) / 1e9
    quiet = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run(
        python(ADAPTER, base, train, options.rank), check=True, env=quiet, stderr=subprocess.DEVNULL
    )
    subprocess.run(ours(base, train, adapter, "--export"), check=True, stdout=subprocess.DEVNULL)
    rows: dict[str, tuple[float, float]] = {}
    # In turn, so that a slower minute of the machine does not fall on one of them alone.
    for _ in range(options.repeat):
        for name, command in (
            ("cp -r + fsync", python(SYNCED_COPY, base, out)),
            ("tunewright", ours(base, train, out)),
        ):
            wall, peak = measure(command, out, 1)
            old = rows.get(name, (wall, peak))
            rows[name] = min(old[0], wall), max(old[1], peak)
    if options.peers and free_memory() > 2.3 * size + 1:
        rows["PEFT"] = measure(python(PEFT, base, adapter, out), out, 1)
    if options.peers and free_memory() > 2.3 * size + 2:
        single = top / "single"
        merge = ours(
            base, adapter, single, "--max-shard-size", "1000GB"
        )  # any single file of this size will do
        subprocess.run(merge, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ["JAX_PLATFORMS"] = "cpu"
        rows["Tunix's saver"] = measure(python(TUNIX, single, train / "checkpoints" / "1", out), out, 1)
    print(f"\n{size:.2f} GB, {layers} layers, rank {options.rank}")
    print(f"{'':18}{'seconds':>9}{'GB/s':>8}{'x cp':>8}{'peak RSS MB':>14}")
    for name, (wall, peak) in rows.items():
        ratio = wall / rows["cp -r + fsync"][0]
        print(f"{name:18}{wall:9.2f}{size / wall:8.2f}{ratio:8.2f}{peak:14.0f}", flush=True)
    return {"gb": round(size, 2), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, action="append", help="size, repeatable; default: 4, 8 and 16")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument(
        "--repeat", type=int, default=3, help="of cp and of ours, in turn (default: %(default)s)"
    )
    parser.add_argument(
        "--dir", type=Path, help="where the checkpoints are made (default: a temporary directory)"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave PEFT and Tunix out")
    options = parser.parse_args()
    results = []
    for gb in options.gb or [4.0, 8.0, 16.0]:
        with tempfile.TemporaryDirectory(prefix="tunewright-bench-", dir=options.dir) as top:
            results.append(one(gb, Path(top).resolve(), options))

    def wall(result: dict[str, Any], name: str) -> float | None:
        row = result["rows"].get(name)
        return row[0] if row else None

    against = [r["rows"]["tunewright"][0] / r["rows"]["cp -r + fsync"][0] for r in results]
    faster = [wall(r, "PEFT") / r["rows"]["tunewright"][0] for r in results if wall(r, "PEFT")]  # type: ignore[operator]
    tunix = [
        wall(r, "Tunix's saver") / r["rows"]["tunewright"][0] for r in results if wall(r, "Tunix's saver")
    ]  # type: ignore[operator]
    print()
    print(
        json.dumps(
            {
                "wall_vs_cp": round(max(against), 3),
                "speedup_vs_peft": round(min(faster), 2) if faster else None,
                "peak_rss_mb": [round(r["rows"]["tunewright"][1]) for r in results],
                "gb": [r["gb"] for r in results],
                "wall_s": [round(r["rows"]["tunewright"][0], 2) for r in results],
                "speedup_vs_tunix_saver": round(min(tunix), 2) if tunix else None,
            }
        )
    )


if __name__ == "__main__":
    main()
