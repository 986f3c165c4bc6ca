"""What a chip costs for an hour, by the way it is bought, each with its date and source.

A price without a source is not in the catalog. Where the wanted one is missing, the on-demand price
stands in for it, and `Quote.note` says so: it is what the run costs at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show

Mode = Literal["onDemand", "spot", "flexStart", "reservation", "computeClass"]
"""How a job gets its nodes."""

PriceModel = Literal["onDemand", "spot", "flexStart", "committed1y", "committed3y"]
"""How a chip is paid for."""

MODELS: tuple[PriceModel, ...] = ("onDemand", "spot", "flexStart", "committed1y", "committed3y")

_OF_MODE: dict[Mode, tuple[PriceModel, ...]] = {
    "onDemand": ("onDemand",),
    "spot": ("spot",),
    "flexStart": ("flexStart",),
    "reservation": ("committed1y", "committed3y"),  # the dearer of two that may both be meant
    "computeClass": (),
}


class Price(BaseModel):
    """What one chip costs for one hour, in US dollars.

    date: of the source, or the day on which it was read.
    """

    model_config = ConfigDict(frozen=True)

    usd: float = Field(ge=0)
    date: str
    source: str
    model: PriceModel = "onDemand"

    def text(self, chip: str) -> str:
        """`$4.20 per v5p chip-hour, onDemand (2026-05-25, source)`."""
        return f"${self.usd:.2f} per {chip} chip-hour, {self.model} ({self.date}, {self.source})"


@dataclass(frozen=True)
class Quote:
    """The price to reckon with; `note` where it is not the one that was asked for."""

    price: Price
    note: str | None = None

    def text(self, chip: str) -> str:
        """The price in words, and the note behind it."""
        said = self.price.text(chip)
        return f"{said}; {self.note}" if self.note else said


Book = Mapping[str, Mapping[PriceModel, Price]]
"""Prices by accelerator and model that stand before the catalog's."""


def fits(mode: Mode, model: PriceModel) -> bool:
    """Whether nodes that were obtained by `mode` are paid for by `model`."""
    return model in _OF_MODE[mode]


def quote(chip: str, known: Mapping[PriceModel, Price], mode: Mode) -> Quote:
    """The price of `mode` among `known`, which has onDemand at least; else that one, with a note."""
    for model in _OF_MODE[mode]:
        if model in known:
            return Quote(known[model])
    found = known["onDemand"]
    return Quote(
        found,
        f"no {mode} price of {chip} in the catalog: reckoned at the onDemand price, which is what it "
        "costs at most; give --prices FILE",
    )


def of_model(chip: str, known: Mapping[PriceModel, Price], model: PriceModel) -> Price:
    """The price of `model`. Raises UserError where nobody has given one."""
    if model in known:
        return known[model]
    raise UserError(
        Fault(
            "--price-model",
            f"no {model} price of {chip} in the catalog (it has {', '.join(known)})",
            show(model),
            "Give --prices FILE with one.",
        )
    )


def read(path: Path, chips: tuple[str, ...]) -> dict[str, dict[PriceModel, Price]]:
    """A prices file: `{"v5p": {"onDemand": {"usd": 3.1, "date": "2026-11-01", "source": "our contract"}}}`.

    `{"v5p": {"usd": ...}}` without a model is what is paid by whatever model. chips: known types.
    Raises UserError with every fault in the file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    except ValueError as error:
        raise UserError(Fault(str(path), f"is not JSON: {error}")) from None
    if not isinstance(data, dict):
        rule = "must be an object: accelerator type -> {usd, date, source}, or one of these by model"
        raise UserError(Fault(str(path), rule, show(data)))
    found: dict[str, dict[PriceModel, Price]] = {}
    faults: list[Fault] = []
    for chip, entry in data.items():
        if chip not in chips:
            near = nearest(chip, list(chips))
            fix = f"Did you mean {near}?" if near else None
            faults.append(Fault(f"{path}: {chip}", "is no accelerator", None, fix))
        else:
            found[chip] = _entry(f"{path}: {chip}", entry, faults)
    if faults:
        raise UserError(faults)
    return found


def _entry(place: str, entry: object, faults: list[Fault]) -> dict[PriceModel, Price]:
    if not isinstance(entry, dict):
        faults.append(Fault(place, "must be {usd, date, source}, or one of these by model", show(entry)))
        return {}
    if not entry or not entry.keys() <= set(MODELS):
        one = _price(place, {**entry, "model": "onDemand"}, faults)
        return {model: one.model_copy(update={"model": model}) for model in MODELS} if one else {}
    made = {
        model: _price(f"{place}.{model}", {**entry[model], "model": model}, faults)
        if isinstance(entry[model], dict)
        else _price(f"{place}.{model}", {}, faults)
        for model in MODELS
        if model in entry
    }
    return {model: price for model, price in made.items() if price}


def _price(place: str, data: dict[str, object], faults: list[Fault]) -> Price | None:
    from tunewright_workloads.contract.configs import faults_of  # configs knows accelerators, which know this

    try:
        return Price.model_validate(data)
    except ValidationError as error:
        faults += faults_of(error, Price, f"{place}.")
        return None
