"""Faults in a user's input: the place, the value, the rule and the way out, all at once.

A `UserError` ends a workload or the CLI with `exits.BAD_INPUT` and its text on stderr; a
traceback is only ever shown for a bug.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_SHOWN = 80


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    place: where a user finds it, `spec.training.epochs` or `train.jsonl:12: messages[1].content`.
    rule:  what must hold there.
    value: what stood there, shortened; None when there is no value to show (a missing field).
    fix:   what to write instead or do next.
    """

    place: str
    rule: str
    value: str | None = None
    fix: str | None = None

    def __str__(self) -> str:
        text = f"{self.place}: {self.rule}"
        if self.value is not None:
            text += f" (got {self.value})"
        return f"{text}. {self.fix}" if self.fix else text


class UserError(ValueError):
    """Input that cannot work, with every fault that was found. Ends in `exits.BAD_INPUT`.

    A ValueError, so that a rule raised inside a pydantic validator is collected with the others.
    """

    def __init__(self, faults: Fault | str | Iterable[Fault], title: str | None = None) -> None:
        if isinstance(faults, str):
            faults = [Fault(faults, "")]
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        self.title = title
        super().__init__(self.text())

    def text(self) -> str:
        """The message as shown to a user: a title when there is one, then a line a fault."""
        lines = [str(fault) if fault.rule else fault.place for fault in self.faults]
        if self.title is None and len(lines) == 1:
            return lines[0]
        title = self.title or f"{len(lines)} things must change"
        return "\n".join([f"{title}:", *(f"  - {line}" for line in lines)])

    def as_json(self) -> list[dict[str, Any]]:
        """The faults as plain data, for `--output json` and for conditions."""
        return [asdict(fault) for fault in self.faults]


_MACHINE = {
    errno.ENOSPC: "Free some space, or choose another place.",
    errno.EDQUOT: "Free some space, or choose another place.",
    errno.EROFS: "Choose a place that can be written.",
    errno.EACCES: "Change the owner or the mode, or choose another place.",
    errno.EPERM: "Change the owner or the mode, or choose another place.",
    errno.ENOTDIR: "Choose another place.",
    errno.EISDIR: "Choose another place.",
    errno.ENAMETOOLONG: "Choose a shorter one.",
    errno.ELOOP: "Mend the symbolic link.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}


def machine(error: OSError) -> str | None:
    """What the operating system refused, as a line for a user; None where it looks like a bug of ours."""
    if error.errno not in _MACHINE:
        return None
    name = error.filename2 or error.filename  # of two, what was to be written
    where = f"{name}: " if name else ""
    return f"{where}{error.strerror or os.strerror(error.errno)}. {_MACHINE[error.errno]}"


def show(value: object) -> str:
    """A value as it stands in a fault: JSON where it can be, at most a line long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name a user most likely meant, or None when nothing is close."""
    folded = {k.lower().replace("_", "").replace("-", ""): k for k in known}
    key = str(name).lower().replace("_", "").replace("-", "")
    if key in folded:
        return folded[key]
    hits = difflib.get_close_matches(key, list(folded), n=1, cutoff=0.6)
    return folded[hits[0]] if hits else None
