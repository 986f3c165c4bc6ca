"""The PyTorch program on a real CUDA machine, in one command and a few minutes.

    make install-gpu
    PYTHONPATH=workloads .venv-gpu/bin/python bench/gpu.py [--keep DIR]

The tiny model that comes with the package, so that nothing is downloaded; it shows that the program
is right on GPUs, not that it is fast. Each line is a check with its figure:

float32    20 steps on one GPU, beside the same on the CPU: every loss within 1e-3
bfloat16   the same in bfloat16: finite, within 0.05 of float32
fsdp       two processes, one a GPU, beside one: every loss within 1e-2 (bfloat16; sums in other order)
merged     the merged models of CPU and GPU, float32, answer a question with the same greedy tokens
evaluate   the validation loss of the merged model on all GPUs and on the CPU: within 1e-3

A check for which the machine has too few GPUs is named as not done. The last line is JSON. Exit code 0
when every check that was done holds, 1 when one does not, 2 without CUDA.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STEPS = 20
LIMIT = 240
"""Seconds that one program may take."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the runs there")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed here: make install-gpu", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none: this PyTorch is built for CPUs"
        print(
            f"PyTorch {torch.__version__} sees no CUDA device (CUDA of the build: {built}).", file=sys.stderr
        )
        return 2
    gpus = torch.cuda.device_count()
    print(f"{gpus} x {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        where = args.keep or Path(scratch)
        where.mkdir(parents=True, exist_ok=True)
        checks = check(where.absolute(), gpus)
    record = {
        "gpus": gpus, "device": torch.cuda.get_device_name(0), "torch": torch.__version__,
        "seconds": round(time.monotonic() - began), "checks": checks,
    }  # fmt: skip
    print(json.dumps(record))
    return 0 if all(c["holds"] is not False for c in checks.values()) else 1


def check(where: Path, gpus: int) -> dict[str, dict[str, Any]]:
    """Every check by name: whether it holds (None: not done) and its figure."""
    found: dict[str, dict[str, Any]] = {}

    def tell(name: str, holds: bool | None, figure: Any, what: str) -> None:
        found[name] = {"holds": holds, "figure": figure}
        word = {True: "holds", False: "FAILS", None: "not done"}[holds]
        print(f"{name:9} {word:8} {what}: {figure}", flush=True)

    def gap(name: str, a: list[float], b: list[float], most: float, what: str) -> None:
        worst = max(abs(x - y) for x, y in zip(a, b, strict=True))
        tell(name, math.isfinite(worst) and worst <= most, worst, f"{what}, at most {most:g}")

    cpu = losses(train(where, "cpu", "float32", 1))
    gpu = losses(train(where, "gpu", "float32", 1, device="h100"))
    gap("float32", cpu, gpu, 1e-3, "loss on GPU against CPU")
    half = losses(train(where, "half", "bfloat16", 1, device="h100"))
    gap("bfloat16", gpu, half, 0.05, "loss in bfloat16 against float32")
    if gpus >= 2:
        two = losses(train(where, "two", "bfloat16", 2, device="h100"))
        gap("fsdp", half, two, 1e-2, "loss of 2 processes against 1")
    else:
        tell("fsdp", None, f"{gpus} GPU", "needs two GPUs")
    models = [merge(where, name) for name in ("cpu", "gpu")]
    answers = [answer(model) for model in models]
    tell("merged", answers[0] == answers[1], answers[1][-8:], "the last tokens of the GPU's model")
    evaluated = [evaluate(where, models[1], cpu=cpu_) for cpu_ in (True, False)]
    gap("evaluate", evaluated[:1], evaluated[1:], 1e-3, "validation loss on GPU against CPU")
    return found


def start(code: list[str]) -> str:
    """Runs a program of ours; its output. Ends the bench when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workloads")}
    environment.pop("RANK", None)
    done = subprocess.run(
        [sys.executable, *code], env=environment, text=True, timeout=LIMIT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(code[:2])} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def write(where: Path, name: str, config: dict[str, Any]) -> str:
    path = where / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def train(where: Path, name: str, dtype: str, processes: int, device: str = "cpu") -> Path:
    """`STEPS` steps of the tiny model; the run's folder."""
    config = {
        "job": f"bench/{name}",
        "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
        "dataset": {"train": ["sample://faq"], "maxLength": 128},
        "adapter": {"rank": 16, "alpha": 32},
        "training": {"steps": STEPS, "globalBatchSize": 8, "learningRate": 1e-3, "warmupSteps": 5},
        "mesh": {"accelerator": device, "fsdp": processes, "tp": 1},
        "computeDtype": dtype,
        "output": f"file://{where / name}",
        "work": str(where / f"{name}-work"),
    }
    start(["-m", "tunewright_workloads.gpu", "--config", write(where, name, config)])
    return where / name


def losses(folder: Path) -> list[float]:
    return [point["loss"] for point in json.loads((folder / "report.json").read_text())["loss"]]


def merge(where: Path, name: str) -> Path:
    config = {
        "job": f"bench/{name}",
        "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
        "adapter": f"file://{where / name / 'adapter'}",
        "output": f"file://{where / name / 'merged'}",
        "dtype": "float32",
        "work": str(where / f"{name}-merge"),
    }
    start(["-m", "tunewright_workloads.merge", "--config", write(where, f"{name}-merge", config)])
    return where / name / "merged"


def answer(model: Path) -> list[int]:
    """24 greedy tokens to a question, computed on the CPU for both models."""
    code = (
        "import json, sys, torch; from pathlib import Path; from transformers import AutoTokenizer; "
        "from tunewright_workloads.gpu import base; where = Path(sys.argv[1]); "
        "words = AutoTokenizer.from_pretrained(where); "
        "asked = words.apply_chat_template([{'role': 'user', 'content': 'What is Tunewright?'}], "
        "add_generation_prompt=True, return_tensors='pt', return_dict=True); "
        "made = base.load(where, torch.float32).generate(**asked, max_new_tokens=24, do_sample=False); "
        "print(json.dumps(made[0].tolist()))"
    )
    return list(json.loads(start(["-c", code, str(model)]).splitlines()[-1]))


def evaluate(where: Path, model: Path, *, cpu: bool) -> float:
    """The validation loss of a merged model: on the CPU by the same function, else by the program itself."""
    config = {
        "job": "bench/evaluate",
        "model": f"file://{model}",
        "dataset": {"train": ["sample://faq"], "validation": ["sample://faq"], "maxLength": 128},
        "mesh": {"accelerator": "h100", "fsdp": 1, "tp": 1},
        "computeDtype": "float32",
        "work": str(where / f"evaluate-{'cpu' if cpu else 'gpu'}"),
    }
    path = write(where, f"evaluate-{'cpu' if cpu else 'gpu'}", config)
    code = "import sys; from tunewright_workloads import evaluate; sys.exit(evaluate.main(['--config', sys.argv[1]]))"
    if cpu:
        code = (
            "import sys; from tunewright_workloads import evaluate; from tunewright_workloads.gpu import validation; "
            "evaluate.measure = lambda c, where, arch, rows: validation.published_loss(where, rows, arch.window, "
            "c.compute_dtype, cpu=True); sys.exit(evaluate.main(['--config', sys.argv[1]]))"
        )
    return float(json.loads(start(["-c", code, path]).splitlines()[-1])["evalLoss"])


if __name__ == "__main__":
    sys.exit(main())
