"""status.preflight says what is known before a slice is bought, and nothing that is not."""

from __future__ import annotations

from typing import Any

from support import specs
from tunewright_operator import api, plan
from tunewright_operator.reconcile.job import _preflight


def preflight(changes: dict[str, Any]) -> dict[str, Any] | None:
    job = specs.job(changes)
    found = _preflight(plan.job(job), counted=job.spec.model.spec is not None)
    if found is not None:
        api.FineTuneJobStatus.model_validate({"preflight": found})
    return found


def test_memory_that_was_counted_fits_and_says_how_much() -> None:
    found = preflight({})
    assert found is not None
    assert found["fits"] is True
    assert "GiB a device" in found["message"]


def test_a_model_of_unknown_shape_is_not_said_to_fit() -> None:
    found = preflight({"spec.model": {"name": "custom", "source": "gs://acme/base"}})
    assert found is not None
    assert "fits" not in found
    assert "not checked" in found["message"]


def test_of_ordinary_nodes_nothing_is_said() -> None:
    assert preflight(specs.TINY) is None
