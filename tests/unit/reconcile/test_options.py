"""The operator's flags and their environment."""

from __future__ import annotations

import pytest

from tunewright_operator.reconcile import options
from tunewright_workloads.contract.faults import UserError


def test_without_flags_the_whole_cluster_is_served_with_the_defaults() -> None:
    found = options.read([])
    assert found == options.Options()


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_NAMESPACES", "team-a, team-b")
    monkeypatch.setenv("TUNEWRIGHT_WORKERS", "4")
    monkeypatch.setenv("TUNEWRIGHT_SERVE_TPU_IMAGE", "x/serve:1")
    assert options.read([]).namespaces == ("team-a", "team-b")
    assert options.read([]).workers == 4
    assert options.read(["--workers", "8"]).workers == 8
    assert options.read([]).plan.serve("tpu") == "x/serve:1"


def test_a_registry_without_its_slash_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="must end with /"):
        options.read(["--registry", "example.com/team"])
