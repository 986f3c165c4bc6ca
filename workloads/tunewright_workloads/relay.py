"""Copies a small file into a ConfigMap whenever it changes: how progress leaves a pod.

    python -m tunewright_workloads.relay --file /var/tunewright/progress.json --config-map NAME

Runs as a sidecar, with a token that may patch this one ConfigMap and nothing else. A write that
fails is tried again with the newest content at the next turn; nothing here can end the workload.
Of several hosts only the first one writes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunewright_workloads.contract import exits

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIMIT = 256 * 1024
"""Bytes of a file that is copied; a ConfigMap holds 1 MiB in all."""

log = logging.getLogger("tunewright.relay")

Patch = Callable[[str], None]
"""Takes the file's text to the ConfigMap. Raises OSError when that fails."""


class Relay:
    """The file, and what of it was last written."""

    def __init__(self, file: Path, patch: Patch) -> None:
        self.file, self.patch = file, patch
        self._sent: str | None = None

    def turn(self) -> bool:
        """Writes the file's content if it is news. Returns whether it was written."""
        text = self._read()
        if text is None or text == self._sent:
            return False
        try:
            self.patch(text)
        except OSError as error:
            log.warning("the record was not written, it is tried again: %s", error)
            return False
        self._sent = text
        return True

    def _read(self) -> str | None:
        try:
            raw = self.file.read_bytes()
        except FileNotFoundError:
            return None
        if len(raw) > LIMIT:
            log.warning("%s has %d bytes; at most %d are copied", self.file, len(raw), LIMIT)
            return None
        return raw.decode("utf-8", errors="replace")


def patcher(server: str, namespace: str, name: str, key: str, account: Path = ACCOUNT) -> Patch:
    """A merge patch of one key of one ConfigMap. The token is read anew each time: it is rotated."""
    url = f"{server}/api/v1/namespaces/{namespace}/configmaps/{name}"
    context = ssl.create_default_context(cafile=str(account / "ca.crt")) if url.startswith("https") else None
    # The API server is never behind the proxy that the environment may name.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )

    def patch(text: str) -> None:
        body: dict[str, Any] = {"data": {key: text}}
        token = (account / "token").read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="PATCH")
        try:
            with opener.open(request, timeout=10):
                pass
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{error.code}: {error.read(300).decode(errors='replace')}") from None

    return patch


def run(relay: Relay, every: float, stop: threading.Event) -> None:
    """A turn every `every` seconds until `stop` is set, and a last one then."""
    while not stop.wait(every):
        relay.turn()
    relay.turn()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tunewright_workloads.relay", description=__doc__.split("\n")[0])
    parser.add_argument("--file", type=Path, required=True, help="what is copied")
    parser.add_argument("--config-map", required=True, help="its name; the key is the file's name")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two writes, at least")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":
        stop.wait()
        return exits.DONE
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    patch = patcher(server, os.environ["POD_NAMESPACE"], options.config_map, options.file.name)
    run(Relay(options.file, patch), options.every, stop)
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
