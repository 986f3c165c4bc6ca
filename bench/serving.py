"""Serving: the small engine beside vLLM on a CPU.

    PYTHONPATH=workloads python bench/serving.py [--rate 4] [--requests 200] [--vllm .venv-vllm/bin/python]

One tiny Gemma 4 (gemma-4-tiny, float32), both engines started by the same workload on loopback, one
after the other, each loaded with the same requests at the same Poisson arrivals. The last line is
JSON: tokens_per_second, ttft_ms and tpot_ms (medians), start_s (until /health) of both engines.
(That our load test measures what vLLM's own does is a test: tests/pipeline/test_vllm_bench.py.)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunewright_workloads.bench import run, table
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.configs import BenchConfig, ServeConfig
from tunewright_workloads.gemma import tiny


@contextmanager
def serving(engine: str, model: Path, work: Path, vllm: Path) -> Iterator[tuple[str, float]]:
    """The server's URL and the seconds until it was ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = ServeConfig.model_validate(
        {
            "endpoint": "bench/serving", "model": f"file://{model}", "requireManifest": False, "servedName": "tiny",
            "engine": engine, "dtype": "float32", "maxModelLength": 512, "maxSequences": 4, "host": "127.0.0.1",
            "port": port, "drainSeconds": 5, "work": str(work / engine),
        }
    )  # fmt: skip
    path = work / f"{engine}.json"
    path.write_text(config.text())
    started, url = time.monotonic(), f"http://127.0.0.1:{port}"
    with (work / f"{engine}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunewright_workloads.serve", "--config", str(path)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TUNEWRIGHT_VLLM_PYTHON": str(vllm)},
        )
    try:
        while True:
            if process.poll() is not None:
                sys.exit((work / f"{engine}.log").read_text())
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except (urllib.error.HTTPError, OSError):
                time.sleep(0.1)
        yield url, time.monotonic() - started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def ours(url: str, options: argparse.Namespace, seed: int) -> BenchReport:
    return run.run(
        BenchConfig(
            url=url, model="tiny", input_tokens=options.input, output_tokens=options.output, rates=(options.rate,),
            requests=options.requests, warmup=20, seed=seed, output="unused",
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--input", type=int, default=128, help="tokens")
    parser.add_argument("--output", type=int, default=32, help="tokens")
    parser.add_argument(
        "--vllm", type=Path, default=Path(".venv-vllm/bin/python"), help="Python that has vLLM"
    )
    options = parser.parse_args()
    options.vllm = options.vllm.absolute()
    if not options.vllm.exists():
        sys.exit(f"{options.vllm} does not exist: run `make install-vllm`, or name the Python that has vLLM")
    reports: dict[str, BenchReport] = {}
    starts: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tunewright-bench-") as top:
        work, model = Path(top), Path(top) / "model"
        tiny.write(model)
        for engine in ("jax", "vllm"):
            with serving(engine, model, work, options.vllm) as (url, starts[engine]):
                report = reports[engine] = ours(url, options, seed=1)
                print(f"\nengine {engine}, ready after {starts[engine]:.1f} s")
                table.show(report)
    points = {engine: report.points[0] for engine, report in reports.items()}
    figures = {
        "tokens_per_second": {e: round(p.output_tokens / p.seconds, 1) for e, p in points.items()},
        "ttft_ms": {e: round(p.ttft.p50, 2) for e, p in points.items()},
        "tpot_ms": {e: round(p.tpot.p50, 2) for e, p in points.items()},
        "start_s": {e: round(s, 1) for e, s in starts.items()},
        "rate": options.rate,
        "requests": options.requests,
    }
    print()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
