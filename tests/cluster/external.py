"""A cluster that is already there (kind, GKE), named by its kubeconfig.

Naming it in TUNEWRIGHT_TEST_KUBECONFIG is the consent to install CRDs and make namespaces and nodes there;
a KUBECONFIG that happens to be set is never taken for one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from . import build
from .api import Access, Cluster

VARIABLE = "TUNEWRIGHT_TEST_KUBECONFIG"


class External(Cluster):
    """Somebody else's API server, used with what its kubeconfig says."""

    def __init__(self, kubeconfig: Path) -> None:
        if not kubeconfig.is_file():
            raise FileNotFoundError(f"{VARIABLE} names {kubeconfig}, which is no file")
        self._scratch = tempfile.TemporaryDirectory(prefix="tunewright-")
        super().__init__(_access(kubeconfig), kubeconfig, _kubectl(), Path(self._scratch.name) / "kubectl")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes our own files; the cluster stays as it is."""
        self._scratch.cleanup()


def named() -> Path | None:
    """The kubeconfig that the user gave for tests, if any."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else None


def _access(kubeconfig: Path) -> Access:
    # Cloud kubeconfigs get their tokens from plugins: the client library knows how to run them.
    from kubernetes import client, config

    found = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=found)
    if found.ssl_ca_cert is None:
        raise ValueError(
            f"{kubeconfig} names no certificate authority for its cluster: add certificate-authority-data"
        )
    bearer = found.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    return Access(
        url=found.host.rstrip("/"),
        ca=Path(found.ssl_ca_cert),
        cert=Path(found.cert_file) if found.cert_file else None,
        key=Path(found.key_file) if found.key_file else None,
        token=bearer.removeprefix("Bearer ").strip() or None,
    )


def _kubectl() -> list[str | Path]:
    installed = shutil.which("kubectl")
    return [installed] if installed else [build.binary("kubebox"), "kubectl"]
