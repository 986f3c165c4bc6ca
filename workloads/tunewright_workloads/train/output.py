"""What a run keeps below its output URI, and whether it may write there.

run.json      whose output this is: the identity of the run, written before the first step
checkpoints/  Orbax
metrics.jsonl one line a step
report.json   written last: with it the run is finished
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunewright_workloads import storage
from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, show

RUN, METRICS, REPORT, CHECKPOINTS = "run.json", "metrics.jsonl", "report.json", "checkpoints"


_MARK = re.compile(rf"^{CHECKPOINTS}/\d+/commit_success\.txt$")


class Output:
    """The output directory or prefix. Small files are written here first, whole, and then published.

    chief: whether this process is the one that writes; the others of a job only read.
    """

    def __init__(self, uri: str, work: Path, *, chief: bool = True) -> None:
        self.chief = chief
        self.uri = uris.parse(uri, "output", writable=True)
        self.local = self.uri.scheme == "file"
        self.root = Path(self.uri.path) if self.local else work / "output"

    @property
    def checkpoints(self) -> str:
        """Where Orbax writes: a path or a gs:// URI."""
        return str(self.root / CHECKPOINTS) if self.local else str(self.uri.child(CHECKPOINTS))

    def path(self, name: str) -> Path:
        """The local copy of a file; its directory exists."""
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                Fault("output", f"cannot be written: {error.strerror}", show(str(self.uri)))
            ) from None
        return path

    def read(self, name: str) -> bytes | None:
        """A file's content, or None where there is none."""
        try:
            if self.local:
                return (self.root / name).read_bytes()
            return storage.store(str(self.uri), place="output").get(name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: str) -> None:
        """Replaces a file as a whole."""
        if not self.chief:
            return
        path = self.path(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise UserError(
                Fault("output", f"cannot be written: {error.strerror}", show(str(self.uri)))
            ) from None
        self.publish(name)

    def publish(self, name: str) -> None:
        """Copies a local file to where the output is, if that is elsewhere."""
        if self.chief and not self.local:
            storage.store(str(self.uri), place="output").put(name, self.path(name).read_bytes())

    def started(self) -> bool:
        """Whether a checkpoint is committed here."""
        if self.local:
            below = self.root / CHECKPOINTS
            return below.is_dir() and any(p.name.isdigit() for p in below.iterdir())
        # A bucket has no rename: there Orbax marks a whole checkpoint with a last file.
        found = storage.store(str(self.uri), place="output").entries(CHECKPOINTS)
        return any(_MARK.match(entry.name) for entry in found)


def document(output: Output, name: str) -> dict[str, Any] | None:
    content = output.read(name)
    if content is None:
        return None
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def claim(output: Output, identity: Mapping[str, Any], job: str) -> dict[str, Any] | None:
    """Takes the output for this run, or says that the run is finished by returning its report.

    Raises UserError with every field that differs when another run's checkpoints are here.
    """
    there = document(output, RUN)
    report = document(output, REPORT)
    if there is not None and (report is not None or output.started()):
        refuse(there.get("identity", {}), identity, str(output.uri), there.get("job"))
        if report is not None:
            return report
    elif there is None and output.started():
        if output.read(RUN) is not None:
            raise UserError(
                Fault(
                    f"{output.uri}/{RUN}",
                    "is damaged: it is not the record of the run whose checkpoints are here",
                    None,
                    "Restore the file, use another output.uri, or move what is there away.",
                )
            )
        raise UserError(
            Fault(
                "output",
                "holds checkpoints that are not this run's (there is no run.json)",
                str(output.uri),
                "Use another output.uri, or move what is there away.",
            )
        )
    output.write(RUN, json.dumps({"job": job, "identity": dict(identity)}, indent=2, sort_keys=True) + "\n")
    return None


def refuse(theirs: Mapping[str, Any], ours: Mapping[str, Any], place: str, job: str | None = None) -> None:
    """Raises UserError when two identities differ, naming each field with both values."""
    faults = [
        Fault(key, f"was {_short(theirs.get(key))} when {place} was written", _short(ours.get(key)))
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    ]
    if faults:
        whose = f" of {job}" if job else ""
        fix = Fault("Use another output.uri, or move what is there away", "")
        raise UserError([*faults, fix], f"output {place} holds another run{whose}, which cannot be continued")


def _short(value: Any) -> str:
    text = show(value)
    return f'{text[:13]}…"' if len(text) > 60 else text
