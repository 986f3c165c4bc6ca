"""Is this directory the model that its manifest says it is?

A merge writes `tunewright.json` last, so a directory without it is unfinished; a file that differs
from the manifest would be served without a word by any engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import MANIFEST, Manifest
from tunewright_workloads.storage import digests


def verify(directory: Path, *, hashes: bool = True, place: str = "model") -> Manifest:
    """The manifest of `directory`, once every file in it is there, of its size and (with `hashes`)
    of its digest. Raises UserError that lists every file that is not.

    Reads all weights once with `hashes`: about a second per GB.
    """
    manifest = read(directory, place)
    faults = []
    for name, digest in sorted(manifest.files.items()):
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError:
            faults.append(Fault(name, "is in the manifest and not in the directory"))
            continue
        if size != digest.size:
            faults.append(Fault(name, f"must have {digest.size} bytes as the manifest says", str(size)))
        elif hashes and digests.sha256(path) != digest.sha256:
            faults.append(Fault(name, "does not have the sha256 that the manifest says"))
    # A weight file that the merge did not write may be loaded all the same: engines glob.
    for path in sorted(directory.glob("*.safetensors")):
        if path.name not in manifest.files:
            faults.append(Fault(path.name, "is not in the manifest", fix="Move it elsewhere."))
    if faults:
        raise UserError(faults, f"{place}: {directory} is not the model that its {MANIFEST} describes")
    return manifest


def read(directory: Path, place: str = "model") -> Manifest:
    """The manifest alone. Raises UserError when there is none, or none that can be read."""
    path = directory / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        fix = "Merge it first; a merge that was cut short goes on when it is run again."
        if (directory / "merged" / MANIFEST).is_file():
            fix = f"Did you mean {directory / 'merged'}?"
        raise UserError(
            Fault(
                place,
                f"needs a directory with a {MANIFEST}, which a finished merge leaves",
                show(str(directory)),
                fix,
            )
        ) from None
    except NotADirectoryError:
        raise UserError(Fault(place, "needs a directory", show(str(directory)))) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "(document)"
        raise UserError(Fault(f"{path}: {where}", f"is not a manifest's: {first['msg']}")) from None


def digest(directory: Path) -> str:
    """sha256 of the manifest itself: one value for the whole served model."""
    return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
