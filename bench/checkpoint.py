"""How long a checkpoint of the 31B's adapter takes: what a SIGTERM leaves time for.

    PYTHONPATH=workloads .venv/bin/python bench/checkpoint.py [--layers N] [--place DIR] [--repeat 3]

LoRA r=64 on all seven projections of Gemma 4 31B: adapter, both moments of AdamW and the position, float32, as
`tunewright_workloads.train` saves them, filled with random numbers (nothing of them compresses, as of trained
ones) on one CPU device. One host of a v5p 2x2x1 writes the same bytes; of several hosts each writes its part.
Needs about 2.5 times the checkpoint's size in memory: 15 GB for all layers.
The last line is JSON: gib on disk, blocked_s (the loop stands still), committed_s (from the start until it counts),
mb_per_s; the best of --repeat, after one that is not counted. plain_mb_per_s: a file of the same size by write(),
fsync() at the end; the disk's own rate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="of the model, a multiple of 6: less memory")
    parser.add_argument("--place", help="where it is written; default: the folder for temporary files")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    place = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=args.place))
    try:
        print(json.dumps(measure(place, args.layers, args.repeat)))
    finally:
        shutil.rmtree(place)


def measure(place: Path, layers: int | None, repeat: int) -> dict[str, Any]:
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from tunewright_workloads.contract.configs import AdapterConfig, Schedule
    from tunewright_workloads.gemma import stages
    from tunewright_workloads.preflight import shapes
    from tunewright_workloads.train import optimizer as optimizers
    from tunewright_workloads.train import program
    from tunewright_workloads.train.checkpoints import Checkpoints

    arch = shapes.architecture("gemma-4-31b", layers)
    mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    draw = np.random.default_rng(0)

    def filled(like: Any) -> Any:
        return jax.device_put(draw.random(like.shape, np.float32), like.sharding)

    adapter = jax.tree.map(filled, stages.adapter_shapes(arch, AdapterConfig(rank=64, alpha=64), mesh))
    schedule = Schedule(steps=1000, global_batch_size=4, learning_rate=1e-4)
    state = program.start(optimizers.make(schedule, 1000), adapter, mesh)
    state = jax.tree.map(lambda x: filled(x) if x.ndim else x, state)
    tree = jax.jit(lambda x: stages.unstack(arch, x), donate_argnums=0)(adapter)
    del adapter
    size = sum(x.nbytes for x in jax.tree.leaves((tree, state)))
    print(f"{size / 2**30:.2f} GiB in {len(jax.tree.leaves((tree, state)))} arrays, to {place}", flush=True)
    checkpoints = Checkpoints(str(place / "checkpoints"), 1)
    found = []
    for step in range(repeat + 1):
        began = time.monotonic()
        checkpoints.save(step, tree, state, {"step": step})
        blocked = time.monotonic() - began
        checkpoints.wait()
        took = time.monotonic() - began
        print(
            f"{'warm-up' if not step else 'run'}: blocked {blocked:.2f} s, committed {took:.2f} s", flush=True
        )
        if step:
            found.append((took, blocked))
    checkpoints.close()
    took, blocked = min(found)
    written = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return {
        "gib": round(written / 2**30, 3),
        "blocked_s": round(blocked, 2),
        "committed_s": round(took, 2),
        "mb_per_s": round(written / took / 1e6),
        "plain_mb_per_s": round(plain(place / "plain", written) / 1e6),
    }


def plain(file: Path, size: int) -> float:
    """Bytes a second of writing a file of `size` bytes, synced once at its end."""
    block = os.urandom(1 << 24)
    began = time.monotonic()
    with file.open("wb") as out:
        for _ in range(-(-size // len(block))):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return file.stat().st_size / (time.monotonic() - began)


if __name__ == "__main__":
    main()
