"""The comparison's pictures: loss on one axis, cost against hours, TTFT against rate."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.report import RunReport


def loss(path: Path, a: RunReport, b: RunReport, names: tuple[str, str]) -> None:
    """Both loss curves, every point, one axis, nothing rescaled."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for run, name in ((a, names[0]), (b, names[1])):
        axes.plot([p.step for p in run.loss], [p.loss for p in run.loss], label=name, linewidth=1)
    axes.set(xlabel="step", ylabel="loss, nats/token", title="Training loss")
    _save(figure, path)


def cost(
    path: Path, a: RunReport, b: RunReport, bench_a: BenchReport, bench_b: BenchReport, names: tuple[str, str]
) -> None:
    """Dollars of training once and serving, against hours of serving."""
    figure, axes = plt.subplots(figsize=(7, 4))
    hours = [h * 0.5 for h in range(24 * 14)]
    for run, bench, name in ((a, bench_a, names[0]), (b, bench_b, names[1])):
        rate = bench.hardware.chips * bench.hardware.price.usd
        axes.plot(hours, [run.cost() + h * rate for h in hours], label=name)
    axes.set(xlabel="hours of serving", ylabel="US$", title="Train once, then serve")
    _save(figure, path)


def ttft(path: Path, a: BenchReport, b: BenchReport, names: tuple[str, str]) -> None:
    """Median and, where the sample allows, p99 of the time to first token, against the offered rate."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for bench, name in ((a, names[0]), (b, names[1])):
        points = sorted(bench.points, key=lambda p: p.rate)
        (line,) = axes.plot(
            [p.rate for p in points], [p.ttft.p50 for p in points], marker="o", label=f"{name}, p50"
        )
        tail = [(p.rate, p.ttft.p99) for p in points if p.ttft.p99 is not None]
        if tail:
            axes.plot(
                *zip(*tail, strict=True),
                marker="x",
                linestyle="--",
                color=line.get_color(),
                label=f"{name}, p99",
            )
    axes.set(xlabel="offered requests/s", ylabel="TTFT, ms", title="Time to first token")
    axes.set_ylim(bottom=0)
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
