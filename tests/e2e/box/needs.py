"""What the box needs of the machine, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.build import UnavailableError, cache, go

from . import layout

# Command or file, and the Debian package that brings it.
_COMMANDS = {
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
}
MEMORY, DISK = 6 << 30, 12 << 30
"""Bytes that a machine must have to be tried as a node: what a run takes, and a little more."""

_TRY = "mkdir lower upper work all && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work box all"

CNI = Path("/usr/lib/cni")
_CNI_PACKAGE = "containernetworking-plugins"

# Where distributions put what root's PATH may lack.
_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def check() -> None:
    """Raises UnavailableError with everything that is missing at once."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UnavailableError(
            "the box is a real node in namespaces of its own, for which it needs Linux and root; elsewhere set "
            "TUNEWRIGHT_TEST_KUBECONFIG to the kubeconfig of a cluster that may be used for tests"
        )
    packages = _missing()
    if packages:
        raise UnavailableError(
            f"the box needs {' '.join(packages)}: `python -m tests.e2e.box install` installs them with apt-get"
        )


def lacks() -> str | None:
    """Why this machine cannot be a node, also after `install`; None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it takes Linux and root"
    missing = _missing()
    if missing and shutil.which("apt-get") is None:
        return f"{' '.join(missing)} are missing, and there is no apt-get to install them with"
    if shutil.which("unshare") is None:
        return "util-linux is missing"
    with tempfile.TemporaryDirectory(dir=layout.folder().parent) as scratch:
        new = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", _TRY]
        tried = subprocess.run(new, capture_output=True, text=True, cwd=scratch, check=False)
    if tried.returncode:
        return f"it may not make namespaces, or overlay mounts in them ({tried.stderr.strip()[-200:]})"
    groups = [path for path in (layout.CGROUPS, *layout.CGROUPS.glob("*")) if path.is_mount()]
    if not groups or any(not os.access(path, os.W_OK) for path in groups):
        return f"it may not make control groups below {layout.CGROUPS}"
    try:
        go()
    except UnavailableError as lack:
        return str(lack)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory < MEMORY:
        return f"it has {memory / 2**30:.1f} GiB of memory, and a node whose pods train takes {MEMORY >> 30}"
    free = shutil.disk_usage(_cache_disk()).free
    if free < DISK:
        return f"{_cache_disk()} has {free / 2**30:.1f} GiB free, and the images take {DISK >> 30}"
    return None


def _cache_disk() -> Path:
    """The nearest folder above the cache that is there."""
    return next(folder for folder in (cache(), *cache().parents) if folder.is_dir())


def install() -> None:
    """Installs what is missing with apt-get."""
    packages = _missing()
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise UnavailableError(
            f"no apt-get here; install {' '.join(packages)} with the package manager there is"
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], env=environment, check=True)
    command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages]
    subprocess.run(command, env=environment, check=True)


def command(name: str) -> str:
    """The path of a system command, also when PATH lacks the folders of root."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM])
    found = shutil.which(name, path=path)
    if found is None:
        raise UnavailableError(f"{name} is not installed: `python -m tests.e2e.box install` installs it")
    return found


def _missing() -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM])
    missing = {package for name, package in _COMMANDS.items() if shutil.which(name, path=path) is None}
    if not (CNI / "bridge").exists():
        missing.add(_CNI_PACKAGE)
    return sorted(missing)
