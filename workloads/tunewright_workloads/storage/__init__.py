"""Files behind URIs: one small interface for file://, gs://, hf:// and sample://.

`localize` makes what a URI names readable as a path; `store` is for writing and for reading piece
by piece. pvc:// never reaches a workload: the plan mounts the claim and passes a file:// URI.
"""

from __future__ import annotations

from pathlib import Path

from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.storage import samples
from tunewright_workloads.storage.digests import fingerprint
from tunewright_workloads.storage.store import Entry, Finished, Store

__all__ = ["Entry", "Finished", "Store", "fingerprint", "localize", "store"]


def localize(uri: str, work: Path, *, revision: str | None = None, place: str = "uri") -> Path:
    """A local path with the content of `uri`: a file for a file, a directory for a prefix.

    file:// and the shipped data set are used where they are; everything else is copied below `work`,
    where an interrupted copy is continued and a finished one is reused while the source's version is
    the same. `revision` is a branch, a tag or a commit of hf://. Raises UserError naming `place` when
    there is nothing at `uri` or it may not be read.
    """
    parsed = uris.parse(uri, place)
    if parsed.scheme == "sample":
        return samples.fetch(parsed.path, Path(work), place)
    if parsed.scheme == "file":
        path = Path(parsed.path)
        try:
            path.stat()
        except FileNotFoundError:
            raise UserError(Fault(place, "there is no such file or directory", show(uri))) from None
        except PermissionError:
            raise UserError(Fault(place, "may not be read by this user", show(uri))) from None
        return path
    raise _unsupported(parsed, place)


def store(uri: str, *, revision: str | None = None, place: str = "uri") -> Store:
    """The store at a URI. Raises UserError naming `place` for a scheme that cannot be one."""
    parsed = uris.parse(uri, place)
    if parsed.scheme == "file":
        from tunewright_workloads.storage.files import FileStore

        return FileStore(parsed)
    raise _unsupported(parsed, place)


def _unsupported(uri: uris.Uri, place: str) -> UserError:
    if uri.scheme == "pvc":
        fix = "Inside a pod the claim is mounted: use file:///mnt/claims/<claim>/<path>."
        return UserError(
            Fault(place, "pvc:// is resolved by the plan, not by a workload", show(str(uri)), fix)
        )
    return UserError(Fault(place, f"{uri.scheme}:// cannot be used here", show(str(uri))))
