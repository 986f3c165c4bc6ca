"""Training on CPU: ours (JAX) beside TRL + PEFT (PyTorch), the same work in both.

    PYTHONPATH=workloads python bench/training.py [--steps 40] [--batch 4] [--length 320] [--repeat 1]

The tiny Gemma 4, chat rows with the paper's distribution of lengths at a tenth of its scale, the same
adapter to start from, the same rows in the same order with the same masks, float32, once packed and
once padded. Each run is a process of its own with all cores, one after the other; the first five
steps are warm-up. TRL gets the rows ready made (nothing is tokenized or packed while it is timed), and
in rows of the same length as ours. The best of --repeat runs counts.
The last line is JSON: packed_vs_trl and padded_vs_trl (our useful tokens a second over theirs),
max_loss_gap (largest relative difference of a step's loss after the first ten steps).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tunewright_workloads import samples

WARM_UP, SETTLED = 5, 10
PROGRAMS = {"ours": "tunewright_workloads.train", "trl": "tunewright_workloads.gpu"}
MEAN, P99 = 922 / 10, 2553 / 10


def rows(path: Path, count: int, seed: int = 0) -> None:
    """Chat rows whose length in tokens is about log-normal, from the words of the shipped questions."""
    draw = random.Random(seed)
    text = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    words = " ".join(m["content"] for pair in text for m in pair).split()
    z = 2.3263478740408408
    sigma = z - math.sqrt(z * z - 2 * math.log(P99 / MEAN))
    mu = math.log(MEAN) - sigma**2 / 2
    with path.open("w") as file:
        for _ in range(count):
            size = max(4, round((draw.lognormvariate(mu, sigma) - 12) / 2.2))  # a word is about 2.2 tokens
            said = draw.choices(words, k=size)
            ask = max(1, size // 3)
            pair = ({"role": "user", "content": " ".join(said[:ask])},
                    {"role": "assistant", "content": " ".join(said[ask:])})  # fmt: skip
            file.write(json.dumps({"messages": pair}) + "\n")


def config(args: argparse.Namespace, place: Path, data: Path, packing: bool) -> dict[str, Any]:
    return {
        "job": f"bench/{place.name}",
        "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
        "dataset": {"train": [f"file://{data}"], "maxLength": args.length, "packing": packing},
        "adapter": {"rank": 16, "alpha": 32},
        "training": {
            "steps": args.steps, "globalBatchSize": args.batch, "learningRate": 1e-3, "warmupSteps": 5,
        },
        "mesh": {"accelerator": "cpu"},
        "computeDtype": "float32",
        "checkpointEvery": 10**6,
        "output": f"file://{place}/out",
        "work": str(place.parent / "work"),
    }  # fmt: skip


def measure(program: str, settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """One run: useful and computed tokens a second after the warm-up, losses, and its report."""
    place.mkdir(parents=True)
    file = place / "train.json"
    file.write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", PROGRAMS[program], "--config", str(file)], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{program} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    report = json.loads((place / "out" / "report.json").read_text())
    lines = [json.loads(line) for line in (place / "out" / "metrics.jsonl").read_text().splitlines()]
    timed = [line for line in lines if line["event"] == "step"][WARM_UP:]
    seconds = sum(line["seconds"] for line in timed)
    positions = report["data"]["tokensPadded"] / report["training"]["steps"] * len(timed)
    return {
        "useful": sum(line["useful"] for line in timed) / seconds,
        "computed": positions / seconds,
        "step": seconds / len(timed),
        "loss": [point["loss"] for point in report["loss"]],
        "report": report,
    }


def same_work(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Ends the benchmark when the two did not train on the same tokens with the same masks."""
    for key in ("tokenDigest", "maskDigest", "templateDigest", "tokensUseful", "tokensPadded"):
        a, b = ours["report"]["data"][key], theirs["report"]["data"][key]
        if a != b:
            sys.exit(f"not the same work: {key} is {a} and {b}")
    for key in ("modules", "params", "rank", "alpha"):
        if ours["report"]["adapter"][key] != theirs["report"]["adapter"][key]:
            sys.exit(f"not the same adapter: {key}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4, help="rows a step")
    parser.add_argument("--length", type=int, default=320, help="tokens of a row")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    if args.steps <= SETTLED:
        parser.error(f"--steps must be more than {SETTLED}")
    results: dict[str, dict[str, Any]] = {}
    gap = 0.0
    print(
        f"{'':12}{'useful tok/s':>14}{'computed tok/s':>16}{'ms/step':>10}{'useful':>9}{'last loss':>11}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="bench-training-") as scratch:
        root = Path(scratch)
        data = root / "train.jsonl"
        rows(data, 600)
        for kind in ("packed", "padded"):
            best: dict[str, Any] = {}
            for program in PROGRAMS:
                for i in range(args.repeat):
                    place = root / f"{kind}-{program}-{i}"
                    found = measure(program, config(args, place, data, kind == "packed"), place)
                    if program not in best or found["useful"] > best[program]["useful"]:
                        best[program] = found
                r = best[program]
                share = r["report"]["data"]["tokensUseful"] / r["report"]["data"]["tokensPadded"]
                print(
                    f"{kind + ' ' + program:12}{r['useful']:14,.0f}{r['computed']:16,.0f}{r['step'] * 1e3:10.1f}"
                    f"{share:9.1%}{r['loss'][-1]:11.4f}",
                    flush=True,
                )
            same_work(best["ours"], best["trl"])
            pairs = list(zip(best["ours"]["loss"], best["trl"]["loss"], strict=True))[SETTLED:]
            gap = max(gap, *(abs(a - b) / b for a, b in pairs))
            results[kind] = best
    print(
        json.dumps(
            {
                **{
                    f"{k}_vs_trl": round(b["ours"]["useful"] / b["trl"]["useful"], 3)
                    for k, b in results.items()
                },
                "max_loss_gap": float(f"{gap:.3g}"),
                "packed_vs_padded": round(
                    results["packed"]["ours"]["useful"] / results["padded"]["ours"]["useful"], 3
                ),
                "useful_tokens_per_second": {
                    k: {p: round(r["useful"]) for p, r in b.items()} for k, b in results.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
