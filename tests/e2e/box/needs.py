"""What the box needs of the machine, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.build import UnavailableError

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
