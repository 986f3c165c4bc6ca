"""Packs a folder as an OCI image of one layer, for `ctr images import` and `buildah pull oci-archive:`.

No registry and no daemon: an image is a tar of a tar and three small JSON files.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Their folders stay, what is in them does not: caches and documents, and what a running system mounts.
_EMPTIED = (
    *("proc", "sys", "dev", "run", "tmp", "debootstrap"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
)

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pack(
    root: Path,
    name: str,
    archive: Path,
    *,
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    user: str = "",
    environment: Sequence[str] = (),
) -> None:
    """Writes the folder `root` as the image `name` (with its tag) to the file `archive`."""
    with tempfile.TemporaryFile(dir=archive.parent) as file, tarfile.open(archive, "w") as out:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as content:
            for path in sorted(root.iterdir()):
                content.add(path, path.name, filter=_kept)
        size = file.tell()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        entry = tarfile.TarInfo(f"blobs/sha256/{digest}")
        entry.size = size
        out.addfile(entry, file)
        runs = {
            "Env": [_PATH, *environment],
            "Entrypoint": list(entrypoint) or None,
            "Cmd": list(command) or None,
            "User": user or None,
        }
        config = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {key: value for key, value in runs.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            # buildah counts the layers below its own by this list
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": f"pack {name}"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _blob(out, config, "application/vnd.oci.image.config.v1+json"),
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{digest}",
                    "size": size,
                }
            ],
        }
        listed = _blob(out, manifest, "application/vnd.oci.image.manifest.v1+json")
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "manifests": [{**listed, "annotations": names}]}
        _put(out, "index.json", json.dumps(index).encode())
        _put(out, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if any(entry.name.startswith(f"{folder}/") for folder in _EMPTIED):
        return None
    entry.mtime = 0
    return entry


def _blob(out: tarfile.TarFile, content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    _put(out, f"blobs/sha256/{digest}", data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _put(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))
