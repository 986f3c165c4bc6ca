"""Where the API server is and how to speak to it.

In a pod the mounted service account says everything, and its token is read again before it ages.
Elsewhere the `kubernetes` client reads the kubeconfig, exec plugins and all, in a process of its
own: importing it costs 30 MB and its plugins block, and the operator wants neither.

    python -m tunewright_operator.reconcile.credentials [--kubeconfig FILE] [--context NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE = 60.0
"""Seconds for which a token read from a file is used; the kubelet replaces it at 80 % of its life."""


class NoClusterError(Exception):
    """There is no usable configuration; the message says what was tried and what to do."""


@dataclass(frozen=True)
class Credentials:
    """One way to reach one API server. Certificates and keys are PEM text."""

    server: str
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    token: str | None = None
    token_file: str | None = None
    insecure: bool = False
    namespace: str = "default"

    def bearer(self) -> str | None:
        """The token as it is now."""
        return Path(self.token_file).read_text(encoding="utf-8").strip() if self.token_file else self.token

    def expiration(self) -> datetime | None:
        """When a token from a file must be read again, None for what does not age."""
        return datetime.now(UTC) + timedelta(minutes=5) if self.token_file else None

    def tls(self) -> ssl.SSLContext | None:
        """The context for https, None for plain http (a proxy on loopback)."""
        if not self.server.startswith("https"):
            return None
        context = ssl.create_default_context(cadata=self.ca)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL takes files only; this one is readable by nobody else and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{self.certificate}\n{self.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context


class Bearer:
    """The Authorization header, fresh enough: a token file is read again once a minute."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._token = credentials.token
        self._read: float | None = None

    def header(self) -> dict[str, str]:
        source, now = self.credentials.token_file, time.monotonic()
        if source and (self._read is None or now - self._read > _TOKEN_AGE):
            self._token, self._read = self.credentials.bearer(), now
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def stale(self) -> None:
        """The server refused the token: the file is read again before the next request."""
        self._read = None


def in_cluster(folder: Path = ACCOUNT) -> Credentials | None:
    """The pod's own account, None outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").is_file():
        return None
    address = f"[{host}]" if ":" in host else host
    return Credentials(
        server=f"https://{address}:{port}",
        ca=(folder / "ca.crt").read_text(encoding="utf-8"),
        token_file=str(folder / "token"),
        namespace=(folder / "namespace").read_text(encoding="utf-8").strip(),
    )


async def load(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """Credentials from the pod, else from the kubeconfig. Raises NoClusterError."""
    if kubeconfig is None and (own := in_cluster()):
        return own
    command = [sys.executable, "-m", "tunewright_operator.reconcile.credentials"]
    if kubeconfig:
        command += ["--kubeconfig", kubeconfig]
    if context:
        command += ["--context", context]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, problem = await process.communicate()
    if process.returncode:
        raise NoClusterError(problem.decode(errors="replace").strip()[-2000:])
    return Credentials(**json.loads(output))


def read(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """Reads the kubeconfig with the `kubernetes` client. Raises NoClusterError."""
    from kubernetes import config as loader
    from kubernetes.client import Configuration

    found = Configuration()
    try:
        loader.load_kube_config(config_file=kubeconfig, context=context, client_configuration=found)
        contexts, active = loader.list_kube_config_contexts(kubeconfig)
    except loader.ConfigException as error:
        where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise NoClusterError(
            f"{where}: {error}. Set KUBECONFIG to a file that kubectl works with, or run in a pod."
        ) from None
    chosen = next((c for c in contexts if c["name"] == context), active)
    # The name under which the client keeps the header changed with its version 36.
    token = (
        found.get_api_key_with_prefix("BearerToken") or found.get_api_key_with_prefix("authorization") or ""
    )
    return Credentials(
        server=found.host.rstrip("/"),
        ca=_text(found.ssl_ca_cert),
        certificate=_text(found.cert_file),
        key=_text(found.key_file),
        token=token.removeprefix("Bearer ").strip() or None,
        insecure=not found.verify_ssl,
        namespace=chosen["context"].get("namespace") or "default",
    )


def _text(path: str | None) -> str | None:
    return Path(path).read_text(encoding="utf-8") if path else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tunewright_operator.reconcile.credentials")
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    options = parser.parse_args()
    try:
        print(json.dumps(asdict(read(options.kubeconfig, options.context))))
    except NoClusterError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
