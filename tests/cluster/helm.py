"""Helm, built from its module, with nothing of the user's own configuration."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from . import build
from .process import plain_environment


class HelmError(Exception):
    """Helm refused or failed; the message is what it wrote."""


def helm(*arguments: str | Path, kubeconfig: Path | None = None, timeout: float = 600.0) -> str:
    """Runs helm and returns what it printed; `kubeconfig` is needed by what speaks to a cluster."""
    with tempfile.TemporaryDirectory(prefix="tunewright-helm-") as home:
        homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        environment = plain_environment(**homes)
        if kubeconfig is not None:
            environment["KUBECONFIG"] = str(kubeconfig)
        done = subprocess.run(
            [build.binary("helm"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    if done.returncode:  # lint writes its findings to stdout
        raise HelmError(f"`helm {' '.join(map(str, arguments))}`:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout
