"""Images without a registry: a Debian with Python as the base, and what our Dockerfiles build on it."""

from __future__ import annotations

import hashlib
import inspect as source
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster import build as tools

from . import config, needs, oci

BASE = "localhost/python:3.11"
"""What Dockerfiles get as their build argument BASE: Python 3.11 with pip, as `python` and `python3`."""

NONROOT = 65532
"""The user that images run as; the base has it as `nonroot`."""

_SUITE = "bookworm"  # the Debian release whose Python is 3.11
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def pause() -> Path:
    """The archive of the image that holds a pod's namespaces open."""
    return static(tools.binary("pause"), config.PAUSE)


def static(binary: Path, tag: str, name: str = "") -> Path:
    """The archive of an image with nothing but one static executable of our tools, run as nobody special.

    It is found as /NAME in the image, its own name unless told otherwise.
    """
    name = name or binary.name

    def make(scratch: Path, archive: Path) -> None:
        root = scratch / "root"
        root.mkdir()
        shutil.copy(binary, root / name)
        oci.pack(root, tag, archive, entrypoint=[f"/{name}"], user=f"{NONROOT}:{NONROOT}")

    return _cached(f"{binary.parent.name}-{_short(tag)}", make)


def base() -> Path:
    """The archive of the base image; made once with debootstrap, in about a minute."""
    return _cached(f"base-{_recipe()}", _debootstrap)


def build(dockerfile: Path, context: Path, tag: str, arguments: Mapping[str, str] | None = None) -> Path:
    """Builds a Dockerfile on the base and returns the archive of the image `tag`, for a node to load."""
    built = make(dockerfile, context, tag, arguments)
    folder = _folder()
    archive = folder / f"{_short(tag)}-{built}.tar"
    if not archive.exists():
        scratch = folder / f".{archive.name}.{os.getpid()}"
        # Docker's format, because buildah compresses OCI layers whatever it is told: minutes for a gigabyte.
        buildah("push", "-q", tag, f"docker-archive:{scratch}:{tag}")
        scratch.rename(archive)
        for older in folder.glob(f"{_short(tag)}-{'?' * 12}.tar"):
            if older != archive:
                older.unlink(missing_ok=True)
    return archive


def make(dockerfile: Path, context: Path, tag: str, arguments: Mapping[str, str] | None = None) -> str:
    """Builds a Dockerfile on the base, into buildah's store alone; returns 12 digits of the image's id.

    Layers are cached, so an unchanged Dockerfile takes seconds. Tags start with `localhost/` and do not
    end with `latest`, which Kubernetes would try to pull.
    """
    if not tag.startswith("localhost/") or ":" not in tag or tag.endswith(":latest"):
        raise ValueError(f"image tag {tag!r}: write localhost/NAME:TAG with a TAG other than latest")
    _pull(base())
    given = {"BASE": BASE} | dict(arguments or {})
    passed = [part for key, value in given.items() for part in ("--build-arg", f"{key}={value}")]
    with tempfile.NamedTemporaryFile(dir=_folder(), prefix=".", mode="r") as identity:
        buildah(
            "build",
            # chroot, so that RUN steps use the host's network as it is
            *("--isolation", "chroot", "--pull-never", "--layers", "--force-rm", "--tag", tag),
            *("--iidfile", identity.name),
            *passed,
            *("--file", str(dockerfile), str(context)),
        )
        return identity.read().strip().removeprefix("sha256:")[:12]


def _short(tag: str) -> str:
    """A tag as part of a file name."""
    return tag.removeprefix("localhost/").replace("/", "-").replace(":", "-")


def _recipe() -> str:
    """The hash of what decides what the base image is."""
    parts = [_SUITE, _PACKAGES, source.getsource(_debootstrap), source.getsource(oci)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _debootstrap(scratch: Path, archive: Path) -> None:
    root = scratch / "root"
    # In a mount namespace: what debootstrap mounts goes with it, also when it is killed.
    command = [needs.command("unshare"), "--mount", needs.command("debootstrap"), "--variant=minbase"]
    log = scratch / "log"
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    with log.open("w") as out:
        done = subprocess.run(
            [*command, f"--include={_PACKAGES}", _SUITE, str(root)],
            stdout=out,
            stderr=out,
            env=environment,
            check=False,
        )
    if done.returncode:
        raise tools.BuildError(f"debootstrap failed:\n{log.read_text()[-2000:]}")
    with (root / "etc" / "passwd").open("a") as users:
        users.write(f"nonroot:x:{NONROOT}:{NONROOT}::/tmp:/usr/sbin/nologin\n")
    with (root / "etc" / "group").open("a") as groups:
        groups.write(f"nonroot:x:{NONROOT}:\n")
    (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    for marker in (root / "usr" / "lib").glob("python3*/EXTERNALLY-MANAGED"):
        marker.unlink()  # this Python is the image's own: pip may install into it, as in images made for that
    if Path(_CERTIFICATES).exists():  # what this machine trusts, its own authorities included
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.lstrip("/"))
    trust = [f"{name}={_CERTIFICATES}" for name in ("SSL_CERT_FILE", "PIP_CERT")]
    oci.pack(root, BASE, archive, command=["/usr/bin/python3"], environment=trust)


def _cached(name: str, make: Callable[[Path, Path], None]) -> Path:
    folder = _folder()
    archive = folder / f"{name}.tar"
    with tools.exclusive(folder / f"{name}.lock"):
        if not archive.exists():
            unfinished = folder / f".{name}.tar"
            with tempfile.TemporaryDirectory(dir=_fast(folder)) as scratch:
                make(Path(scratch), unfinished)
            unfinished.rename(archive)
    return archive


def _fast(folder: Path) -> Path:
    """Where to unpack a system: in memory if there is plenty, since its packages sync each file to disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30 else folder


def _folder() -> Path:
    folder = tools.cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pull(archive: Path) -> None:
    """Gives buildah's store the base, unless it is the one that it has."""
    pulled = tools.cache() / "buildah" / "base"
    if not pulled.exists() or pulled.read_text() != archive.name:
        buildah("pull", "-q", f"oci-archive:{archive}")
        pulled.write_text(archive.name)


def inspect(tag: str) -> dict[str, Any]:
    """The configuration of an image that `build` made: Env, Cmd, User, as OCI calls them."""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", tag))["OCIv1"]["config"]
    return found


def command() -> list[str]:
    """buildah with a store of our own, for whoever is in a mount namespace of their own."""
    store = tools.cache() / "buildah"
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    return [
        *(needs.command("buildah"), "--storage-driver", driver),
        *("--root", str(store / "root"), "--runroot", str(store / "run")),
    ]


def buildah(*arguments: str) -> str:
    """Runs buildah and returns what it printed."""
    # In a mount namespace: buildah keeps its store mounted onto itself.
    started = [needs.command("unshare"), "--mount", *command(), *arguments]
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    if done.returncode:
        raise tools.BuildError(
            f"`buildah {' '.join(arguments)}` failed:\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout
