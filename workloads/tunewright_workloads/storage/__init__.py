"""Files behind URIs: one small interface for file://, gs://, hf:// and sample://.

`localize` makes what a URI names readable as a path; `store` is for writing and for reading piece
by piece. pvc:// never reaches a workload: the plan mounts the claim and passes a file:// URI.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.storage import samples
from tunewright_workloads.storage.digests import fingerprint
from tunewright_workloads.storage.faults import LostClaimError, StorageError
from tunewright_workloads.storage.store import Entry, Finished, Store

__all__ = ["Entry", "Finished", "LostClaimError", "StorageError", "Store", "fingerprint", "localize", "store"]


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
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(Fault(place, "there is no such file or directory", show(uri))) from None
        except PermissionError:
            raise UserError(Fault(place, "may not be read by this user", show(uri))) from None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENAMETOOLONG):
                raise StorageError(f"{uri}: {error.strerror}") from None
            raise UserError(Fault(place, f"cannot be read: {error.strerror}", show(uri))) from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            # A pipe or a device is read once, or without end; datasets are read more than once.
            raise UserError(Fault(place, "must be a file or a directory, not a pipe or a device", show(uri)))
        return path
    if parsed.scheme == "hf":
        from tunewright_workloads.storage import hub

        return hub.snapshot(parsed, revision, place)
    if parsed.scheme == "gs":
        return _download(parsed, Path(work), place)
    raise _pvc(parsed, place)


def _download(uri: uris.Uri, work: Path, place: str) -> Path:
    """An object as a file, a prefix as a directory that holds what the prefix holds now, and no more."""
    from tunewright_workloads.storage.cloud import CloudStore

    top = work / "fetched" / hashlib.sha256(str(uri).encode()).hexdigest()[:12]
    folder, _, name = uri.path.rpartition("/")
    if name:
        parent = CloudStore(uris.Uri("gs", uri.root, folder), place)
        one = parent.entry(name)
        if one is not None:
            parent.fetch(one, top / "file" / name)
            return top / "file" / name
    source = CloudStore(uri, place)
    entries = source.entries()
    if not entries:
        raise UserError(Fault(place, "there is no object here and none below it", show(str(uri))))
    target = top / (name or uri.root)
    names = {e.name for e in entries}
    if target.is_dir():
        for old in target.rglob("*"):
            hidden = old.name.startswith(".")
            if old.is_file() and not hidden and old.relative_to(target).as_posix() not in names:
                old.unlink()
    with ThreadPoolExecutor(4, "fetch") as pool:
        for future in [pool.submit(source.fetch, e, target / e.name) for e in entries]:
            future.result()
    return target


def store(uri: str, *, revision: str | None = None, place: str = "uri") -> Store:
    """The store at a URI. Raises UserError naming `place` for a scheme that cannot be one."""
    parsed = uris.parse(uri, place)
    if parsed.scheme == "file":
        from tunewright_workloads.storage.files import FileStore

        return FileStore(parsed)
    if parsed.scheme == "gs":
        from tunewright_workloads.storage.cloud import CloudStore

        return CloudStore(parsed, place)
    if parsed.scheme == "hf":
        from tunewright_workloads.storage.hub import HubStore

        return HubStore(parsed, revision, place)
    raise _pvc(parsed, place)


def _pvc(uri: uris.Uri, place: str) -> UserError:
    if uri.scheme == "pvc":
        fix = "Inside a pod the claim is mounted: use file:///mnt/claims/<claim>/<path>."
        return UserError(
            Fault(place, "pvc:// is resolved by the plan, not by a workload", show(str(uri)), fix)
        )
    return UserError(
        Fault(place, "a sample is no directory that can be opened piece by piece", show(str(uri)))
    )
