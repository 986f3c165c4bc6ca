"""Is this directory the model that its manifest says it is?

A merge writes `tunewright.json` last, so a directory without it is unfinished; a file that differs
from the manifest would be served without a word by any engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from tunewright_workloads import storage
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import MANIFEST, Manifest
from tunewright_workloads.storage import digests

_NEEDS = f"needs a directory with a {MANIFEST}, which a finished merge leaves"
_MERGE = "Merge it first; a merge that was cut short goes on when it is run again."


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


def verify_remote(uri: str, place: str = "model") -> Manifest:
    """The manifest below a URI, once every file's size is as it says. Raises UserError that lists those
    that are not.

    Digests are not read: the weights of a bucket pass through a machine once, into the accelerator.
    """
    store = storage.store(uri, place=place)
    try:
        manifest = Manifest.model_validate_json(store.get(MANIFEST))
    except FileNotFoundError:
        fix = _MERGE
        if store.exists(f"merged/{MANIFEST}"):
            fix = f"Did you mean {uri.rstrip('/')}/merged?"
        raise UserError(Fault(place, _NEEDS, show(uri), fix)) from None
    except ValidationError as error:
        raise _unreadable(f"{uri}/{MANIFEST}", error) from None
    sizes = {entry.name: entry.size for entry in store.entries()}
    faults = [
        Fault(name, f"must have {d.size} bytes as the manifest says", str(sizes.get(name, "no file")))
        for name, d in sorted(manifest.files.items())
        if sizes.get(name) != d.size
    ]
    if faults:
        raise UserError(faults, f"{place}: {uri} is not the model that its {MANIFEST} describes")
    return manifest


def read(directory: Path, place: str = "model") -> Manifest:
    """The manifest alone. Raises UserError when there is none, or none that can be read."""
    path = directory / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        fix = _MERGE
        if (directory / "merged" / MANIFEST).is_file():
            fix = f"Did you mean {directory / 'merged'}?"
        raise UserError(Fault(place, _NEEDS, show(str(directory)), fix)) from None
    except NotADirectoryError:
        raise UserError(Fault(place, "needs a directory", show(str(directory)))) from None
    except ValidationError as error:
        raise _unreadable(str(path), error) from None


def _unreadable(place: str, error: ValidationError) -> UserError:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "(document)"
    return UserError(Fault(f"{place}: {where}", f"is not a manifest's: {first['msg']}"))


def digest(directory: Path) -> str:
    """sha256 of the manifest itself: one value for the whole served model."""
    return hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
