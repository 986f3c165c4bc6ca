"""Comparing objects: what a merge patch must say, and whether a live object still is as wanted."""

from __future__ import annotations

import hashlib
import json
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
    return bool(live == wanted) or str(live) == str(wanted)


def digest(body: Any) -> str:
    """16 hex digits over plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
