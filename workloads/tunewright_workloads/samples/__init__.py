"""Files that ship inside the package, for the quickstart and for tests (`sample://name`)."""

from __future__ import annotations

from pathlib import Path

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show

_HERE = Path(__file__).parent

FILES = {"faq": "faq.jsonl"}
"""What `sample://name` may name, besides the generated model `gemma-4-tiny`."""


def path(name: str, place: str = "uri") -> Path:
    """The file of a sample. Raises UserError naming `place` and the nearest known sample."""
    if name in FILES:
        return _HERE / FILES[name]
    near = nearest(name, list(FILES))
    fix = f"Did you mean sample://{near}?" if near else None
    raise UserError(Fault(place, f"sample:// knows {', '.join(FILES)} and gemma-4-tiny", show(name), fix))
