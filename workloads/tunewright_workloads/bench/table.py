"""A report as a table for a terminal, and as a plot."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from tunewright_workloads.contract.benchmark import BenchReport


def table(report: BenchReport) -> Table:
    """One row a rate. Milliseconds; a dash where the sample is too small for a percentile."""
    hardware = report.hardware
    chips = f"{hardware.chips} x {hardware.type}" if hardware.chips else hardware.type
    made = Table(
        title=f"{report.model} on {chips}: {report.input_tokens} tokens in, {report.output_tokens} out"
    )
    columns = ["req/s", "answered/s", "tok/s", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99", "ITL p99"]
    for name in [*columns, *(["goodput/s"] if report.slo else []), "errors"]:
        made.add_column(name, justify="right")
    for point in report.points:
        cells: list[float | None] = [
            point.rate,
            (point.requests - point.errors) / point.seconds,
            point.output_tokens / point.seconds,
        ]
        cells += [
            point.ttft.p50,
            point.ttft.p90,
            point.ttft.p99,
            point.tpot.p50,
            point.tpot.p90,
            point.tpot.p99,
        ]
        cells += [point.itl.p99 if point.itl else None, *([point.goodput] if report.slo else [])]
        made.add_row(*("-" if c is None else f"{c:.4g}" for c in cells), str(point.errors))
    return made


def show(report: BenchReport) -> None:
    Console(width=150).print(table(report))


def plot(report: BenchReport, path: Path) -> None:
    """Latency and throughput over the offered rate, as an image of the suffix's format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = [p.rate for p in report.points]
    figure, (first, each, through) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for axes, title, values in (
        (first, "time to first token (ms)", [p.ttft for p in report.points]),
        (each, "time a token after it (ms)", [p.tpot for p in report.points]),
    ):
        for name in ("p50", "p90", "p99"):
            line = [getattr(v, name) for v in values]
            if all(y is not None for y in line):
                axes.plot(rates, line, marker="o", label=name)
        axes.set_title(title)
        axes.legend()
    through.plot(
        rates, [p.output_tokens / p.seconds for p in report.points], marker="o", label="output tokens/s"
    )
    through.set_title("output tokens a second")
    for axes in (first, each, through):
        axes.set_xlabel("requests a second, offered")
        axes.set_ylim(bottom=0)
    figure.suptitle(f"{report.model}: {report.input_tokens} tokens in, {report.output_tokens} out")
    figure.savefig(path)
    pyplot.close(figure)
