"""Comparing objects: what a merge patch must say, and whether a live object still is as wanted."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from typing import Any


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The smallest merge patch that turns `old` into `new`: absent keys become null, lists are whole."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything in `wanted` stands in `live`, which may hold more (defaults, others' fields).

    An empty value that the server left out is the same as an empty value.
    """
    if isinstance(wanted, dict):
        if live is None:
            return not wanted
        return isinstance(live, dict) and all(covers(live.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        if live is None:
            return not wanted
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
        )
    if live is None and wanted in ("", False, 0):
        return True
    if live == wanted or str(live) == str(wanted):
        return True
    amount = _quantity(str(wanted))
    return amount is not None and _quantity(str(live)) == amount


_SUFFIX = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


def _quantity(text: str) -> Decimal | None:
    """The API server writes 1024Mi as 1Gi."""
    match = _QUANTITY.fullmatch(text)
    return Decimal(match[1]) * _SUFFIX[match[2] or ""] if match else None


def digest(body: Any) -> str:
    """16 hex digits over plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
