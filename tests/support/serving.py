"""Directories to serve, and servers over them that end with their test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.lineage import MANIFEST, Adapter, Base, FileDigest, Manifest, Probe

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tunewright" / "xla-tests"
"""Compiled programs of all tests that serve: they are the same few again and again."""


def manifest(directory: Path, probes: list[Probe] | None = None) -> Manifest:
    """Writes the manifest of a directory as it stands, as a merge would."""
    files = {
        str(path.relative_to(directory)): FileDigest(
            size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    digest = "0" * 64
    record = Manifest(
        base=Base(source="sample://gemma-4-tiny", digest=digest),
        adapter=Adapter(source="file:///nowhere", digest=digest, rank=1, alpha=1.0, modules=0),
        dtype="float32",
        files=files,
        probes=probes or [],
    )
    (directory / MANIFEST).write_text(record.model_dump_json(by_alias=True, indent=2))
    return record


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def config(directory: Path, work: Path, **changes: Any) -> ServeConfig:
    return ServeConfig(
        **{
            "endpoint": "default/test",
            "model": f"file://{directory}",
            "served_name": "tiny",
            "host": "127.0.0.1",
            "port": free_port(),
            "max_model_length": 256,
            "drain_seconds": 20,
            "work": str(work),
            **changes,
        }
    )


class Server:
    """`python -m tunewright_workloads.serve` as a process."""

    def __init__(self, settings: ServeConfig, work: Path, environment: dict[str, str] | None = None) -> None:
        work.mkdir(parents=True, exist_ok=True)
        path = work / f"serve-{settings.port}.json"
        path.write_text(settings.text())
        self.settings = settings
        self.url = f"http://127.0.0.1:{settings.port}"
        self.log = work / f"serve-{settings.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tunewright_workloads.serve", "--config", str(path)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT / "workloads")]),
                    "JAX_PLATFORMS": "cpu",
                    "JAX_COMPILATION_CACHE_DIR": str(CACHE),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                    **(environment or {}),
                },
            )

    def ready(self, seconds: float = 300) -> Server:
        """Waits for /health. Fails with the log when the process ends first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log.read_text()}")
            if self.health() == 200:
                return self
            time.sleep(0.1)
        raise AssertionError(f"not ready after {seconds} s:\n{self.log.read_text()}")

    def health(self) -> int:
        """The status of /health, 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def post(self, path: str, body: Any, raw: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request."""
        data = raw if raw is not None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@contextlib.contextmanager
def serving(
    directory: Path, work: Path, environment: dict[str, str] | None = None, **changes: Any
) -> Iterator[Server]:
    """A server that is ready; killed afterwards if it did not end on SIGTERM."""
    server = Server(config(directory, work, **changes), work, environment)
    try:
        yield server.ready()
    finally:
        if server.process.poll() is None:
            server.stop()
