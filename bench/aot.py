"""A training step of Gemma 4 31B by the TPU's own compiler: the paper's recipe, stock Tunix packed, MaxText, ours.

    make install-tpu install-maxtext
    PYTHONPATH=workloads .venv-tpu/bin/python bench/aot.py [--layers N] [--only NAME ...] [--keep DIR [--again]]

No TPU is needed and none is asked: every second here is the compiler's model of a v5p, read from
the scheduled program the same way for all (tunewright_workloads.preflight.hlo; docs/benchmarks.md
says what it counts and what it cannot know). LoRA r=64 on all seven projections, AdamW.

paper         Tunix's modules and loss, LoRA by stock Qwix in bfloat16; one padded row of 3072 tokens (922
              useful on average), mesh 1x4, every layer recomputed, compiler defaults.
tunix-packed  the same modules and loss on packed rows: 4 x 3072, mesh 4x1, segments as a mask.
maxtext       MaxText tuned by hand, 8 packed rows of 3072, mesh 4x1, in an environment of its own with its own,
              newer compiler (bench/aot_maxtext.py). Left out, with a word, where it is not installed.
ours          `python -m tunewright_workloads.train`'s step, 4 packed rows of 5120, mesh 4x1.
v5p-2x2x2     ours on two hosts, 8 x 5120. v6e-2x4: ours on v6e, as two hosts of four chips, 8 x 3072.

Tunix's layers are compiled as a scan over groups of six, as ours are: unrolled they take 7 minutes and
9 GB on two idle cores (--unrolled does it) and the model says the same within 1 %. With --keep the
scheduled programs stay, and --again reads those that are there instead of compiling them anew.
`--json workloads/tunewright_workloads/compare/aot.json` is how the record that `tunewright compare
--paper` shows is made: run it with everything, and commit the file with docs/benchmarks.md.
The last line is JSON: ratio_to_paper, mfu, peak_hbm_share, seconds_per_1k_useful, compile_s.
Exit code 1 when a program is missing from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

MODEL = "gemma-4-31b"
PADDED_USEFUL = 922 / 3072
"""Useful share of the paper's padded rows."""
PACKED_USEFUL = 0.97
"""Of packed rows, the least that the packing's tests allow."""


@dataclass(frozen=True)
class Point:
    """One program on one slice. rows and length are of a step."""

    accelerator: str
    topology: str
    fsdp: int
    tp: int
    rows: int
    length: int
    useful: float
    stock: bool = False


POINTS = {
    "paper": Point("v5p", "2x2x1", 1, 4, 1, 3072, PADDED_USEFUL, stock=True),
    "tunix-packed": Point("v5p", "2x2x1", 4, 1, 4, 3072, PACKED_USEFUL, stock=True),
    "maxtext": Point("v5p", "2x2x1", 4, 1, 8, 3072, PACKED_USEFUL),
    "ours": Point("v5p", "2x2x1", 4, 1, 4, 5120, PACKED_USEFUL),
    "v5p-2x2x2": Point("v5p", "2x2x2", 8, 1, 8, 5120, PACKED_USEFUL),
    "v6e-2x4": Point("v6e", "2x4", 8, 1, 8, 3072, PACKED_USEFUL),
}

ROOT = Path(__file__).parent.parent
MAXTEXT = ROOT / ".venv-maxtext" / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, help="of the model, a multiple of 6: a quick look")
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--unrolled", action="store_true", help="Tunix's layers as Tunix runs them")
    parser.add_argument("--unroll", type=int, help="repetitions of our scan's body, instead of the default")
    parser.add_argument("--keep", metavar="DIR", help="write the scheduled programs there")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the record there, for `tunewright compare --paper --compiled FILE`",
    )
    parser.add_argument("--again", action="store_true", help="read the programs that are kept there already")
    parser.add_argument("--one", choices=list(POINTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, POINTS[args.one], args)))
        return 0
    if args.again and not args.keep:
        parser.error("--again needs --keep DIR")
    found: dict[str, dict[str, Any]] = {}
    without: dict[str, str] = {}
    for name in args.only:
        if name == "maxtext" and not MAXTEXT.exists():
            without[name] = "not installed: make install-maxtext"
            print(f"{name}: {without[name]}", flush=True)
            continue
        # A process each: the compiler gives memory back only at its end.
        command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{name}: failed", flush=True)
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(text(name, found[name]), flush=True)
    ours, paper, peer = found.get("ours"), found.get("paper"), found.get("maxtext")
    record = {
        "ratio_to_paper": paper and ours and paper["seconds_per_1k"] / ours["seconds_per_1k"],
        "mfu": ours and ours["mfu"],
        "peak_hbm_share": ours and ours["peak_hbm_share"],
        "seconds_per_1k_useful": ours and ours["seconds_per_1k"],
        "compile_s": ours and ours["compile_s"],
        "ratio_to_maxtext": peer and ours and peer["seconds_per_1k"] / ours["seconds_per_1k"],
        "without": without,
        "layers": args.layers or 60,
        "programs": found,
    }  # fmt: skip
    print(json.dumps(record))
    if args.json:
        write(Path(args.json), record)
    return 0 if set(found) | set(without) == set(args.only) else 1


def write(path: Path, record: dict[str, Any]) -> None:
    """The record with what it came from: what `tunewright compare --paper` reads."""
    versions = {name: metadata.version(name) for name in ("jax", "libtpu", "google-tunix", "qwix")}
    programs = {
        name: {"accelerator": POINTS[name].accelerator, "topology": POINTS[name].topology}
        | {key: value for key, value in row.items() if key not in ("top", "traffic")}
        for name, row in record["programs"].items()
    }
    missing = {name: "not asked for" for name in POINTS if name not in programs} | record["without"]
    whole = {
        "command": " ".join(["bench/aot.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
        **record,
        "without": missing,
        "programs": programs,
    }
    path.write_text(json.dumps(whole, indent=2) + "\n")


def text(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name:13} {row['seconds_per_1k_hidden']:.3f} s a 1,000 useful tokens, {row['seconds_per_1k']:.3f} with exposed "
        f"transfers; step {row['step_s']:.3f} s (attention {row['attention_s']:.3f}, exposed {row['exposed_s']:.3f} of "
        f"{row['network_s']:.3f}); MFU {row['mfu']:.3f}; {row['arguments_gib']:.1f} + {row['temporaries_gib']:.1f} GiB "
        f"= {row['peak_hbm_share']:.1%}; compiled in {row['compile_s']:.0f} s; keeps {row['kept']}"
    )


def one(name: str, point: Point, args: argparse.Namespace) -> dict[str, Any]:
    """Compiles one program, or takes the one that is kept, and reads it."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from tunewright_workloads.preflight import compiler, shapes

    arch = shapes.architecture(MODEL, args.layers)
    asked = {**asdict(point), "layers": arch.layers, "unroll": args.unroll, "unrolled": args.unrolled}
    place = Path(args.keep) / name if args.keep else None
    kept = ""
    if args.again and place and place.with_suffix(".json").exists():
        record = json.loads(place.with_suffix(".json").read_text())
        if record["asked"] != asked:
            sys.exit(f"{place}.json is of another program: {record['asked']}, not {asked}")
        text = place.with_suffix(".txt").read_text()
        compiled = compiler.Compiled(text, compiler.Memory(**record["memory"]), record["seconds"])
        kept = record["kept"]
    else:
        compiled, kept = maxtext(args.layers) if name == "maxtext" else build(point, arch, args)
    if place:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.with_suffix(".txt").write_text(compiled.text)
        record = {
            "asked": asked, "memory": asdict(compiled.memory), "seconds": compiled.seconds, "kept": kept,
        }  # fmt: skip
        place.with_suffix(".json").write_text(json.dumps(record))  # last: it says that the text is whole
    from tunewright_workloads.preflight import aot

    tokens, chips = point.rows * point.length, point.fsdp * point.tp
    block = (lambda length, window: 512) if name == "maxtext" else None
    found = aot.reading(compiled, arch, point.accelerator, chips, tokens, point.length, block)
    gib = 2**30
    return {
        "seconds_per_1k": found.per_thousand(point.useful),
        "seconds_per_1k_hidden": found.per_thousand(point.useful, exposed=False),
        "step_s": found.seconds,
        "matmul_s": found.matmul,
        "attention_s": found.attention,
        "exposed_s": found.exposed,
        "network_s": found.network,
        "mfu": found.mfu,
        "peak_hbm_share": found.share,
        "arguments_gib": found.memory.arguments / gib,
        "temporaries_gib": found.memory.temporaries / gib,
        "compile_s": found.compile_seconds,
        "kept": kept,
        "traffic": {kind: [count, sent / 1e9] for kind, (count, sent) in found.traffic.items()},
        "top": [[seconds, what] for seconds, what in found.top[:12]],
    }


def build(point: Point, arch: Any, args: argparse.Namespace) -> tuple[Any, str]:
    """A program of Tunix's or of ours, compiled, and what its backward pass keeps."""
    from tunewright_workloads.contract.configs import AdapterConfig, Schedule
    from tunewright_workloads.preflight import compiler

    devices = compiler.devices(point.accelerator, point.topology)
    from tunewright_workloads.preflight import aot

    if point.stock:
        mesh = aot.mesh(devices, point.fsdp, point.tp)
        return compiler.compile_(stock(arch, mesh, point.rows, point.length, args.unrolled)), "nothing"
    schedule = Schedule(steps=1000, global_batch_size=point.rows, learning_rate=1e-4, max_grad_norm=None)
    step = aot.trace(
        arch, AdapterConfig(rank=64, alpha=64), schedule, devices, accelerator=point.accelerator,
        fsdp=point.fsdp, tp=point.tp, length=point.length, unroll=args.unroll,
    )  # fmt: skip
    return compiler.compile_(step.traced), step.kept


def maxtext(layers: int | None) -> tuple[Any, str]:
    """MaxText's program, compiled by an interpreter that has it."""
    from tunewright_workloads.preflight import compiler

    with tempfile.TemporaryDirectory(prefix="bench-aot-") as scratch:
        file = Path(scratch) / "program.txt"
        command = [str(MAXTEXT), str(ROOT / "bench" / "aot_maxtext.py"), "--text", str(file)]
        command += ["--layers", str(layers)] if layers else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=scratch, check=True)
        record = json.loads(done.stdout.splitlines()[-1])
        seconds, kept = record.pop("seconds"), record.pop("kept")
        return compiler.Compiled(file.read_text(), compiler.Memory(**record), seconds), kept


GROUP = 6
"""Layers after which the 31B repeats itself: five sliding, one global."""


def stock(arch: Any, mesh: Any, rows: int, length: int, unrolled: bool) -> Any:
    """The traced step of Tunix's modules under its trainer's default loss, adapters by Qwix as it comes."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import optax
    import qwix
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec
    from tunix.models.gemma4 import model as tunix
    from tunix.sft import peft_trainer
    from tunix.utils import sharding_utils

    from tunewright_workloads.gemma import load, lora

    # Tunix leaves activations alone where JAX's own devices are CPUs, as they are here.
    def shard(x: Any, spec: Any, eager: bool = False) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))

    sharding_utils.shard = shard
    for name, value in list(vars(tunix).items()):
        if getattr(value, "__name__", "") == "shard":
            setattr(tunix, name, shard)

    # Qwix adds the adapters to what the model's call calls, so the scan has to run inside of that.
    inside: list[Callable[..., Any]] = []
    as_it_is = tunix.Gemma4.__call__

    def call(model: Any, *given: Any, **named: Any) -> Any:
        return inside.pop()(*given) if inside else as_it_is(model, *given, **named)

    tunix.Gemma4.__call__ = call

    groups = 1 if unrolled else arch.layers // GROUP
    size = arch.layers // groups
    part = dataclasses.replace(arch, layers=size, globals=arch.globals[:size])
    plain = load.abstract(part, "bfloat16", "bfloat16")
    partition = load.specs(plain)
    graph, state = nnx.split(plain)
    rule = ".*(q_einsum|kv_einsum|k_einsum|attn_vec_einsum|gate_proj|up_proj|down_proj)"
    adapted = nnx.eval_shape(
        lambda s: qwix.apply_lora_to_model(
            nnx.merge(graph, s), qwix.LoraProvider(module_path=rule, rank=64, alpha=64.0), rngs=nnx.Rngs(0),
            tokens=jnp.ones((1, 2), jnp.int32), positions=jnp.ones((1, 2), jnp.int32), cache=None,
            attention_mask=jnp.ones((1, 1, 2), bool),
        ),
        state,
    )  # fmt: skip
    adapted.config.remat_config = tunix.RematConfig.DECODER
    graph, adapters, base = nnx.split(adapted, nnx.LoRAParam, ...)

    def spec_of(path: tuple[Any, ...]) -> Any:
        dotted = load.dotted(path)
        if dotted in partition:
            return partition[dotted]
        return lora.SPECS[str(path[-2])][str(path[-1]).endswith("_b")]

    def shape(path: tuple[Any, ...], variable: Any) -> Any:
        value, spec = variable.get_value(), spec_of(path)
        lead = (groups,) if groups > 1 and path[0] == "layers" else ()
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * len(lead), *spec))
        return jax.ShapeDtypeStruct((*lead, *value.shape), value.dtype, sharding=sharding)

    kinds = {path: variable for state in (adapters, base) for path, variable in nnx.to_flat_state(state)}
    own = {path: shape(path, v) for path, v in nnx.to_flat_state(adapters)}
    frozen = {path: shape(path, v) for path, v in nnx.to_flat_state(base)}

    def merged(*trees: dict[Any, Any]) -> Any:
        states = [nnx.from_flat_state([(p, kinds[p].replace(x)) for p, x in tree.items()]) for tree in trees]
        return nnx.merge(graph, *states)

    def forward(a: dict[Any, Any], b: dict[Any, Any]) -> Callable[..., Any]:
        if groups == 1:
            return merged(a, b)  # type: ignore[no-any-return]
        stacks = tuple({p: x for p, x in tree.items() if p[0] == "layers"} for tree in (a, b))
        tops = tuple({p: x for p, x in tree.items() if p[0] != "layers"} for tree in (a, b))

        def whole(slices: Any) -> Any:
            return merged(*({**top, **part} for top, part in zip(tops, slices, strict=True)))

        def scanned(tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
            # Gemma4.__call__ for a model without shared K and V or per-layer inputs, its loop a scan.
            model = whole(jax.tree.map(lambda x: x[0], stacks))

            def body(x: Any, slices: Any) -> Any:
                for layer in whole(slices).layers:
                    _, x, _ = layer(x, positions, None, mask)
                return x, None

            x, _ = jax.lax.scan(body, model.embedder.encode(tokens), stacks)
            logits = model.embedder.decode(model.final_norm(x)).astype(jnp.float32)
            cap = arch.softcap
            return jnp.tanh(logits / cap) * cap, None

        inside.append(scanned)
        return whole(jax.tree.map(lambda x: x[0], stacks))  # type: ignore[no-any-return]

    optimizer = optax.adamw(1e-4, weight_decay=0.001)

    def step(a: Any, moments: Any, b: Any, batch: Any) -> Any:
        loss, slopes = jax.value_and_grad(lambda a: peft_trainer._default_loss_fn(forward(a, b), *batch))(a)
        updates, moments = optimizer.update(slopes, moments, a)
        return optax.apply_updates(a, updates), moments, loss

    every = NamedSharding(mesh, PartitionSpec())
    moments = optax.tree.map_params(
        optimizer,
        lambda x, like: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=like.sharding),
        jax.eval_shape(optimizer.init, own), own,
        transform_non_params=lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=every),
    )  # fmt: skip

    def given(kind: Any, *more: int) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
        return jax.ShapeDtypeStruct((rows, length, *more), kind, sharding=sharding)

    batch = (given(jnp.int32), given(jnp.int32), given(jnp.int32), given(jnp.bool_, length))
    with mesh:
        return jax.jit(step, donate_argnums=(0, 1)).trace(own, moments, frozen, batch)


if __name__ == "__main__":
    sys.exit(main())
