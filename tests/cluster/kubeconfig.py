"""Self-contained kubeconfigs: they stay usable when they are copied elsewhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from .pki import Pair


def write(path: Path, url: str, ca: Path, who: Pair | str, namespace: str | None = None) -> Path:
    """Writes a kubeconfig for the holder of a client certificate or of a bearer token."""
    user = (
        {"token": who}
        if isinstance(who, str)
        else {"client-certificate-data": _base64(who.cert), "client-key-data": _base64(who.key)}
    )
    cluster = {"server": url, "certificate-authority-data": _base64(ca)}
    context = {"cluster": "tests", "user": path.stem} | ({"namespace": namespace} if namespace else {})
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": path.stem, "user": user}],
        "contexts": [{"name": "tests", "context": context}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
