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

from tunewright_workloads.compare import compiled, paper, table
from tunewright_workloads.contract import exits, prices
from tunewright_workloads.contract.accelerators import ACCELERATORS, accelerator
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.configs import faults_of
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.prices import Book, PriceModel, of_model
from tunewright_workloads.contract.report import HardwareRecord, RunReport

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
    if where.is_dir() and not report.exists():
        fix = "Give the output folder of a finished run."
        raise UserError(Fault(str(where), "holds no report.json", None, fix))
    bench = report.with_name("bench.json")
    return read(RunReport, report), read(BenchReport, bench) if bench.exists() else None


def reprice(record: R, book: Book, model: PriceModel | None) -> R:
    """The record of a run or a bench at other prices.

    model: how the chips are paid for; None: as they were obtained. A price of `book` stands before the
    catalog's; one that neither has leaves the record as it is, unless `model` asks for it (UserError).
    """
    hardware: HardwareRecord = record.hardware  # type: ignore[attr-defined]
    if not hardware.chips or (model is None and hardware.type not in book):
        return record
    chip = accelerator(hardware.type)
    known = chip.prices(book)
    price = of_model(chip.name, known, model) if model else chip.quote(hardware.mode, book).price
    return record.model_copy(update={"hardware": hardware.model_copy(update={"price": price})})


def show_paper(console: Console, as_json: bool, programs: compiled.Compiled) -> None:
    """The published figures, each derived again, and what the compiled programs say beside them."""
    if as_json:
        claims = [
            {"what": c.what, "printed": c.printed, "derived": c.derived, "holds": c.holds}
            for c in paper.claims()
        ]
        data = {"claims": claims, "remarks": paper.remarks(), "compiled": programs.data()}
        print(json.dumps(data, indent=2))
        return
    out = Table("figure", "printed", "derived", "holds", "how", title="arXiv 2605.25645, from its own inputs")
    for claim in paper.claims():
        out.add_row(claim.what, claim.printed, claim.derived, "yes" if claim.holds else "NO", claim.how)
    console.print(out)
    for line in paper.remarks():
        console.print(f"- {line}", highlight=False)
    console.print()
    beside = Table(
        *compiled.COLUMNS, title="Compiled programs: the compiler's model of a v5p, no measurement"
    )
    for row in programs.rows():
        beside.add_row(*row)
    console.print(beside)
    for line in programs.remarks():
        console.print(f"- {line}", highlight=False)


def show_comparison(console: Console, result: table.Comparison) -> None:
    out = Table("measure", *result.names, "ratio")
    for row in result.rows:
        out.add_row(row.measure, row.a, row.b, "" if row.ratio is None else f"{row.ratio:.2f}x")
    console.print(out)
    for line in result.notes:
        console.print(line, highlight=False)
    for finding in result.findings:
        console.print(f"{finding.severity.upper()}: {finding}", highlight=False)


@click.command(name="tunewright compare")
@click.argument("a", required=False, type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option("--paper", "paper_", is_flag=True, help="Derive the published figures again from their inputs.")
@click.option(
    "--compiled",
    "programs",
    type=click.Path(path_type=Path),
    help="With --paper: what `bench/aot.py --json` wrote, instead of the recorded run.",
)
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(path_type=Path),
    help="JSON file with other prices of a chip-hour.",
)
@click.option(
    "--price-model",
    type=click.Choice(prices.MODELS),
    help="How the chips are paid for. Default: as they were obtained.",
)
@click.option(
    "--output", "form", type=click.Choice(["table", "json", "markdown"]), default="table", show_default=True
)
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Folder for the pictures.")
def command(
    a: Path | None, b: Path | None, paper_: bool, programs: Path | None, prices_file: Path | None,
    price_model: PriceModel | None, form: str, plots: Path | None,
) -> None:  # fmt: skip
    """Sets two runs side by side, or says why that would be dishonest."""
    console = Console()
    if paper_:
        if a or b or prices_file or price_model or plots or form == "markdown":
            raise click.UsageError("--paper takes --compiled and --output table or json, and nothing else")
        show_paper(console, form == "json", compiled.read(programs))
        return
    if programs:
        raise click.UsageError("--compiled goes with --paper")
    if a is None or b is None:
        raise click.UsageError("give two report.json files or directories, or --paper")
    book = prices.read(prices_file, tuple(ACCELERATORS)) if prices_file else {}
    (run_a, bench_a), (run_b, bench_b) = (
        (reprice(run, book, price_model), bench and reprice(bench, book, price_model))
        for run, bench in (find(a), find(b))
    )
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
