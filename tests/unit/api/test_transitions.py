"""Changes: what may change, and what is said otherwise. The same table is asked of an API server."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders import job, merged
from support.good_specs import CHANGES
from tunewright_operator import api


@pytest.mark.parametrize(("data", "change", "place"), [c[:3] for c in CHANGES], ids=[c[3] for c in CHANGES])
def test_a_change(data: dict[str, Any], change: dict[str, Any], place: str | None) -> None:
    kind = api.KINDS[data["kind"]]
    old, new = api.parse(kind, data), api.parse(kind, merged(data, {"spec": change}))
    assert [fault.place for fault in api.changes(new.spec, old.spec, "spec")] == ([place] if place else [])


def test_every_field_of_a_spec_is_in_the_table_of_changes() -> None:
    for kind in api.KINDS.values():
        changed = {next(iter(change)) for data, change, *_ in CHANGES if data["kind"] == kind.__name__}
        fields = {i.alias or n for n, i in kind.model_fields["spec"].annotation.model_fields.items()}  # type: ignore[union-attr]
        known = {"serviceAccountName", "podTemplate"} if kind is api.ServeEndpoint else set()
        assert changed >= fields - known


def test_the_same_spec_is_no_change() -> None:
    spec = job().build().spec
    assert api.changes(spec, spec, "spec") == []


def test_a_default_written_out_is_no_change() -> None:
    old = job().build().spec
    new = (
        job()
        .set("training", {"epochs": 1, "globalBatchSize": 16})
        .set("adapter", {"rank": 16, "alpha": 16})
        .build()
        .spec
    )
    assert api.changes(new, old, "spec") == []


def test_the_fault_says_what_can_change() -> None:
    (fault,) = api.changes(job().on("v6e", "2x4").build().spec, job().build().spec, "spec")
    assert str(fault) == (
        "spec.accelerator: cannot be changed. "
        "Create another job; of this one only limits, suspend, ttlSecondsAfterFinished can change"
    )
