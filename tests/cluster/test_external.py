"""A cluster named by a kubeconfig answers just as our own does."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import external
from .control import ControlPlane


def test_a_kubeconfig_with_a_client_certificate_is_enough(plane: ControlPlane) -> None:
    with external.External(plane.kubeconfig) as other:
        assert other.url == plane.url
        assert other.exists("/api/v1/namespaces/default")
        assert "namespace/default" in other.kubectl("get", "namespaces", "-o", "name")


def test_a_kubeconfig_with_a_token_is_enough(plane: ControlPlane) -> None:
    assert plane.token is not None
    kubeconfig = plane.write_kubeconfig("token", plane.url, plane.token)
    with external.External(kubeconfig) as other:
        assert other.access.cert is None
        assert other.token == plane.token
        assert other.exists("/api/v1/namespaces/default")


def test_a_named_file_that_is_missing_is_said_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(external.VARIABLE, str(tmp_path / "absent"))
    given = external.named()
    assert given is not None
    with pytest.raises(FileNotFoundError, match=r"TUNEWRIGHT_TEST_KUBECONFIG names .*absent"):
        external.External(given)


def test_a_kubeconfig_that_happens_to_be_set_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(external.VARIABLE, raising=False)
    monkeypatch.setenv("KUBECONFIG", "/some/production.conf")
    assert external.named() is None
