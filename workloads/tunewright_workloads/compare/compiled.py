"""What `bench/aot.py` read from compiled training steps, beside the paper's figures.

Every second here is the compiler's own model of a chip that was not there. `aot.json` is the record of
one run of the bench with its command, versions and date; `bench/aot.py --json FILE` writes another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunewright_workloads.compare import paper
from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.configs import faults_of
from tunewright_workloads.contract.faults import Fault, UserError

RECORDED = Path(__file__).parent / "aot.json"

COLUMNS = ("program", "s / 1k useful tokens", "x the recipe", "MFU", "of HBM", "one epoch", "$ of it")


class Program(BaseModel):
    """One compiled step. Seconds are the compiler's model; shares of 1. Other fields are the bench's own."""

    model_config = ConfigDict(extra="ignore")

    accelerator: str = "v5p"
    topology: str = "2x2x1"
    seconds_per_1k: float = Field(gt=0, description="with exposed transfers, for 1,000 useful tokens")
    mfu: float = Field(gt=0)
    peak_hbm_share: float = Field(gt=0)
    compile_s: float = Field(ge=0)


class Compiled(BaseModel):
    """The record of one run of `bench/aot.py`."""

    model_config = ConfigDict(extra="ignore")

    command: str
    date: str
    versions: dict[str, str]
    layers: int = Field(ge=1)
    without: dict[str, str] = Field(default_factory=dict, description="programs that are missing, and why")
    programs: dict[str, Program] = Field(min_length=1)

    def rows(self) -> list[tuple[str, ...]]:
        """One line a program, in the order of COLUMNS."""
        recipe = self.programs.get("paper")
        lines: list[tuple[str, ...]] = []
        for name, p in self.programs.items():
            ratio = f"{recipe.seconds_per_1k / p.seconds_per_1k:.1f}x" if recipe else "no recipe"
            hours = self._hours(p)
            lines.append(
                (
                    f"{name} ({p.accelerator} {p.topology})", f"{p.seconds_per_1k:.3f}", ratio, f"{p.mfu:.1%}",
                    f"{p.peak_hbm_share:.1%}", f"{hours:.2f} h", f"{hours * self._rate(p):.2f}",
                )
            )  # fmt: skip
        return lines

    def remarks(self) -> list[str]:
        """What a reader must know beside the rows, each with its numbers."""
        measured = 1e3 / paper.TPU.tokens_per_second
        lines = [f"{self.command}, {self.date}, {self.layers} layers, " + ", ".join(f"{k} {v}" for k, v in self.versions.items()) + "."]  # fmt: skip
        recipe = self.programs.get("paper")
        if recipe:
            lines.append(
                f"Caveat: these are seconds of the compiler's model and no measurement. The paper's hardware took "
                f"{measured:.2f} s for 1,000 useful tokens of the recipe where the model says {recipe.seconds_per_1k:.2f}: "
                f"real steps are {measured / recipe.seconds_per_1k:.1f} times slower. Compare the rows with each other, "
                "and with the measured 3.34 h and $56.11 only as a lower bound."
            )
        else:
            lines.append(
                "Caveat: these are seconds of the compiler's model and no measurement; the recipe itself is "
                "not among the programs, so that nothing ties them to the paper's hardware."
            )
        if self.layers != 60:
            lines.append(f"Caveat: {self.layers} of the model's 60 layers: no row is a figure of the 31B.")
        tokens = paper.STEPS * paper.BATCH * paper.MEAN_TOKENS
        lines.append(f"One epoch: {tokens / 1e6:.2f} M useful tokens, as the paper's own, steps alone.")
        for name in sorted({p.accelerator for p in self.programs.values()}):
            lines.append(f"Price: {accelerator(name).price.text(name)}.")
        lines += [f"Not compiled: {name}, {why}." for name, why in self.without.items()]
        return lines

    def data(self) -> dict[str, Any]:
        """For JSON: the record, and what is printed of it."""
        shown = [dict(zip(COLUMNS, row, strict=True)) for row in self.rows()]
        return {**self.model_dump(mode="json"), "rows": shown, "remarks": self.remarks()}

    @staticmethod
    def _hours(p: Program) -> float:
        return paper.STEPS * paper.BATCH * paper.MEAN_TOKENS / 1e3 * p.seconds_per_1k / 3600

    @staticmethod
    def _rate(p: Program) -> float:
        """$ an hour of the slice, on demand."""
        chips = 1
        for axis in p.topology.split("x"):
            chips *= int(axis)
        return chips * accelerator(p.accelerator).price.usd


def read(path: Path | None = None) -> Compiled:
    """The record at `path`, or the one that comes with the package.

    Raises UserError where it is none.
    """
    path = path or RECORDED
    try:
        return Compiled.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    except ValidationError as error:
        faults = faults_of(error, Compiled, f"{path}: ")
        raise UserError([*faults, Fault(str(path), "must be what bench/aot.py --json wrote")]) from None
