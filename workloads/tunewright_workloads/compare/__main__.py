"""`python -m tunewright_workloads.compare A B` and `... --paper`; the CLI's `tunewright compare`.

A and B are `report.json` files or directories that hold one; a `bench.json` beside it is used too.
Exit code 0: an honest comparison; 2: bad input; 3: refused, with the reasons.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypeVar

import click
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.table import Table

from tunewright_workloads.compare import paper, table
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.accelerators import ACCELERATORS, Price
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.configs import faults_of
from tunewright_workloads.contract.faults import Fault, UserError, nearest, show
from tunewright_workloads.contract.report import RunReport

REFUSED = 3

R = TypeVar("R", bound=BaseModel)


def read(kind: type[R], path: Path) -> R:
    """A record from its file. Raises UserError with every fault in it."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    except ValidationError as error:
        raise UserError(faults_of(error, kind, f"{path}: ")) from None


def find(where: Path) -> tuple[RunReport, BenchReport | None]:
    """The report at `where` (file or directory) and the bench beside it, if there is one."""
    report = where / "report.json" if where.is_dir() else where
    bench = report.with_name("bench.json")
    return read(RunReport, report), read(BenchReport, bench) if bench.exists() else None


def reprice(
    run: RunReport, bench: BenchReport | None, prices: dict[str, Price]
) -> tuple[RunReport, BenchReport | None]:
    """The same records at other prices of a chip-hour."""

    def priced(record: R) -> R:
        hardware = record.hardware  # type: ignore[attr-defined]
        price = prices.get(hardware.type, hardware.price)
        return record.model_copy(update={"hardware": hardware.model_copy(update={"price": price})})

    return priced(run), priced(bench) if bench else None


def read_prices(path: Path) -> dict[str, Price]:
    """`{"v5p": {"usd": 3.1, "date": "2026-11-01", "source": "our contract"}, ...}`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    except ValueError as error:
        raise UserError(Fault(str(path), f"is not JSON: {error}")) from None
    if not isinstance(data, dict):
        raise UserError(
            Fault(str(path), "must be an object: accelerator type -> {usd, date, source}", show(data))
        )
    prices: dict[str, Price] = {}
    faults: list[Fault] = []
    for name, value in data.items():
        if name not in ACCELERATORS:
            near = nearest(name, list(ACCELERATORS))
            faults.append(
                Fault(f"{path}: {name}", "is no accelerator", None, f"Did you mean {near}?" if near else None)
            )
            continue
        try:
            prices[name] = Price.model_validate(value)
        except ValidationError as error:
            faults += faults_of(error, Price, f"{path}: {name}.")
    if faults:
        raise UserError(faults)
    return prices


def show_paper(console: Console, as_json: bool) -> None:
    """The published figures, each derived again."""
    if as_json:
        claims = [
            {"what": c.what, "printed": c.printed, "derived": c.derived, "holds": c.holds}
            for c in paper.claims()
        ]
        print(json.dumps({"claims": claims, "remarks": paper.remarks()}, indent=2))
        return
    out = Table("figure", "printed", "derived", "holds", "how", title="arXiv 2605.25645, from its own inputs")
    for claim in paper.claims():
        out.add_row(claim.what, claim.printed, claim.derived, "yes" if claim.holds else "NO", claim.how)
    console.print(out)
    for line in paper.remarks():
        console.print(f"- {line}", highlight=False)


def show_comparison(console: Console, result: table.Comparison) -> None:
    out = Table("measure", *result.names, "ratio")
    for row in result.rows:
        out.add_row(row.measure, row.a, row.b, "" if row.ratio is None else f"{row.ratio:.2f}x")
    console.print(out)
    for finding in result.findings:
        console.print(f"{finding.severity.upper()}: {finding}", highlight=False)


@click.command(name="tunewright compare")
@click.argument("a", required=False, type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option("--paper", "paper_", is_flag=True, help="Derive the published figures again from their inputs.")
@click.option("--prices", type=click.Path(path_type=Path), help="JSON file with other prices of a chip-hour.")
@click.option(
    "--output", "form", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True
)
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Folder for the pictures.")
def command(
    a: Path | None, b: Path | None, paper_: bool, prices: Path | None, form: str, plots: Path | None
) -> None:
    """Sets two runs side by side, or says why that would be dishonest."""
    console = Console()
    if paper_:
        if a or b:
            raise click.UsageError("--paper takes no runs")
        show_paper(console, form == "json")
        return
    if a is None or b is None:
        raise click.UsageError("give two report.json files or directories, or --paper")
    known = read_prices(prices) if prices else {}
    (run_a, bench_a), (run_b, bench_b) = (reprice(*find(where), known) for where in (a, b))
    result = table.compare(run_a, run_b, bench_a, bench_b)
    if form == "json":
        print(json.dumps(result.data(), indent=2))
    elif form == "markdown":
        print(result.markdown())
    else:
        show_comparison(console, result)
    if plots:
        from tunewright_workloads.compare import plot

        try:
            plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be written: {error.strerror}"
            raise UserError(Fault("--plots", rule, show(str(plots)), "Choose another place.")) from None
        plot.loss(plots / "loss.png", run_a, run_b, result.names)
        if bench_a and bench_b:
            plot.cost(plots / "cost.png", run_a, run_b, bench_a, bench_b, result.names)
            plot.ttft(plots / "ttft.png", bench_a, bench_b, result.names)
    if result.refused:
        sys.exit(REFUSED)


def main() -> None:
    try:
        command()
    except UserError as error:
        print(error.text(), file=sys.stderr)
        sys.exit(exits.BAD_INPUT)


if __name__ == "__main__":
    main()
