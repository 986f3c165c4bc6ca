"""The comparison of two runs as plain data, as a table for a terminal, and as Markdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tunewright_workloads.compare import honesty
from tunewright_workloads.compare.honesty import Finding
from tunewright_workloads.compare.money import Offer, break_even
from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.report import HardwareRecord, RunReport

HOURS = (1, 8, 24, 24 * 30)


@dataclass(frozen=True)
class Row:
    """One measure of both; `ratio` is how many times better the first is, None where that says nothing."""

    measure: str
    a: str
    b: str
    ratio: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that is printed. With refusals, `rows` carry no ratios."""

    names: tuple[str, str]
    findings: list[Finding]
    rows: list[Row]
    served: bool = False

    @property
    def notes(self) -> list[str]:
        """How to read the table."""
        lines = ["ratio: how many times better the first is; empty where that says nothing."]
        if self.refused:
            lines = ["No ratio is given: the two did not do the same work (see refuse)."]
        if not self.served:
            lines.append(
                "Training alone: with a bench.json (tunewright bench) beside both reports, serving, total cost "
                "and break-even are compared, too."
            )
        return lines

    @property
    def refused(self) -> bool:
        return any(f.severity == "refuse" for f in self.findings)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "names": list(self.names),
            "honest": not self.refused,
            "notes": self.notes,
            "findings": [asdict(f) for f in self.findings],
            "rows": [asdict(r) for r in self.rows],
        }

    def markdown(self) -> str:
        """The table, then every finding."""
        lines = [f"| measure | {self.names[0]} | {self.names[1]} | ratio |", "| --- | ---: | ---: | ---: |"]
        lines += [f"| {r.measure} | {r.a} | {r.b} | {_ratio(r)} |" for r in self.rows]
        lines += ["", *self.notes]
        if self.findings:
            lines += ["", "What a reader must know:", ""]
            lines += [f"- **{f.severity}** {f}" for f in self.findings]
        return "\n".join(lines) + "\n"


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}x"


def compare(
    a: RunReport,
    b: RunReport,
    bench_a: BenchReport | None = None,
    bench_b: BenchReport | None = None,
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Sets two training runs, and their load tests where both have one, side by side."""
    findings = honesty.runs(a, b)
    rows = _training(a, b)
    if bench_a and bench_b:
        findings = sorted(
            [*findings, *honesty.benches(bench_a, bench_b)], key=lambda f: f.severity != "refuse"
        )
        rows += _serving(bench_a, bench_b) + _money(a, b, bench_a, bench_b)
    if any(f.severity == "refuse" for f in findings):
        rows = [Row(r.measure, r.a, r.b) for r in rows]
    found = names or (_name(a), _name(b))
    if found[0] == found[1]:
        found = (f"A: {found[0]}", f"B: {found[1]}")
    return Comparison(found, findings, rows, served=bench_a is not None and bench_b is not None)


def _name(run: RunReport) -> str:
    h = run.hardware
    if h.chips == 0:
        return f"{run.program} on {h.type}"
    return f"{run.program} on {h.chips} x {h.type}"


def _better_low(measure: str, a: float, b: float, form: str) -> Row:
    return Row(measure, format(a, form), format(b, form), b / a if a > 0 and b > 0 else None)


def _better_high(measure: str, a: float, b: float, form: str) -> Row:
    return Row(measure, format(a, form), format(b, form), a / b if a > 0 and b > 0 else None)


def _price(run: RunReport) -> str:
    return _priced(run.hardware)


def _priced(h: HardwareRecord) -> str:
    return h.price.text(h.type) if h.chips else "none: ordinary nodes are not priced here"


def _training(a: RunReport, b: RunReport) -> list[Row]:
    rows = [
        _better_low("training, wall clock s", a.time.total, b.time.total, ",.1f"),
        _better_low("inside steps, s", a.time.steps, b.time.steps, ",.1f"),
        _better_low("median step, s", a.time.step_median, b.time.step_median, ".4f"),
        _better_high("useful tokens/s", a.tokens_per_second(), b.tokens_per_second(), ",.1f"),
        Row(
            "computed positions/s",
            f"{a.tokens_per_second(padded=True):,.1f}",
            f"{b.tokens_per_second(padded=True):,.1f}",
        ),
        Row("useful share of positions", f"{_useful(a):.1%}", f"{_useful(b):.1%}"),
    ]
    rows.append(Row("MFU, useful tokens, 4 N FLOP", _mfu(a), _mfu(b)))
    last = [run.loss[-1].loss if run.loss else float("nan") for run in (a, b)]
    rows.append(Row("last step's loss, nats/token", f"{last[0]:.4f}", f"{last[1]:.4f}"))
    if a.hardware.chips or b.hardware.chips:  # ordinary nodes have no price: $0.00 would be a claim
        rows.append(_better_low("training $", a.cost(), b.cost(), ",.2f"))
        per = [r.cost() / (r.data.tokens_useful / 1e6) if r.data.tokens_useful else 0.0 for r in (a, b)]
        rows.append(_better_low("$ per 1M useful tokens", per[0], per[1], ",.4f"))
    rows.append(Row("price", _price(a), _price(b)))
    return rows


def _mfu(run: RunReport) -> str:
    value = run.mfu(accelerator(run.hardware.type).peak_flops)
    return "unknown peak" if value is None else f"{value:.1%}"


def _useful(run: RunReport) -> float:
    return run.data.tokens_useful / run.data.tokens_padded if run.data.tokens_padded else 0.0


def _serving(a: BenchReport, b: BenchReport) -> list[Row]:
    rows = [
        _better_high("peak output tokens/s", a.peak_tokens_per_second(), b.peak_tokens_per_second(), ",.1f")
    ]
    points_b = {p.rate: p for p in b.points}
    for p in a.points:
        q = points_b.get(p.rate)
        if q is None:
            continue
        for name in ("ttft", "tpot"):
            for percentile in ("p50", "p90", "p99"):
                x, y = getattr(getattr(p, name), percentile), getattr(getattr(q, name), percentile)
                if x is not None and y is not None:
                    rows.append(_better_low(f"{name.upper()} {percentile} at {p.rate:g}/s, ms", x, y, ",.1f"))
    return rows


def _money(a: RunReport, b: RunReport, bench_a: BenchReport, bench_b: BenchReport) -> list[Row]:
    x, y = _offer(a, bench_a), _offer(b, bench_b)
    if not (x.serve and y.serve):
        return []
    rows = [_better_low(f"train once + serve {h} h, $", x.total(h), y.total(h), ",.2f") for h in HOURS]
    crossing = break_even(x, y)
    text = "never: one is cheaper in both" if crossing is None else f"{crossing:,.1f} h of serving"
    rows.append(Row("break-even", text, text))
    return [*rows, Row("price of serving", _priced(bench_a.hardware), _priced(bench_b.hardware))]


def _offer(run: RunReport, bench: BenchReport) -> Offer:
    rate = bench.hardware.chips * bench.hardware.price.usd
    return Offer(_name(run), run.cost(), rate, run.data.tokens_useful)
