"""What an hour of a slice costs, in words that name the price."""

from __future__ import annotations

from tunewright_operator.api.hardware import AcceleratorBase
from tunewright_workloads.contract.prices import Book, Quote


def quote(wanted: AcceleratorBase, book: Book) -> Quote:
    """The price of a chip-hour of the slice, as it is obtained."""
    return wanted.chip.quote(wanted.provisioning.mode, book)


def hourly(wanted: AcceleratorBase, book: Book) -> str:
    """`4 chips, $6.72 an hour: $1.68 per v5p chip-hour, spot (date, source)`; empty on ordinary nodes."""
    chips = wanted.slice.chips
    if not chips:
        return ""
    found = quote(wanted, book)
    count = f"{chips} chip{'s' if chips > 1 else ''}"
    return f"{count}, ${chips * found.price.usd:.2f} an hour: {found.text(wanted.chip.name)}"
