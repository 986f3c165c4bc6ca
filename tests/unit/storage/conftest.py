"""One server a session, one proxy a test."""

from collections.abc import Iterator

import pytest

from support import gcs
from tunewright_workloads.storage import cloud


@pytest.fixture(scope="session")
def backend() -> Iterator[str]:
    with gcs.server() as url:
        yield url


@pytest.fixture
def proxy(backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcs.Proxy]:
    monkeypatch.setattr(cloud, "CHUNK", 256 << 10)
    monkeypatch.setattr(cloud, "PATIENCE", 8.0)
    monkeypatch.setattr(cloud, "TIMEOUT", (2.0, 1.0))
    monkeypatch.setattr(cloud, "LEASE", 2.0)
    with gcs.proxy(backend) as made:
        for name, value in gcs.environment(made.url).items():
            monkeypatch.setenv(name, value)
        yield made
