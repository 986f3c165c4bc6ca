"""Every bad spec of the table is refused offline, at the very place and with the very message."""

from __future__ import annotations

import json

import pytest

from support.bad_specs import TABLE, Bad
from support.builders import ENDPOINT, JOB
from tunewright_operator import api
from tunewright_workloads.contract.faults import UserError


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_refused_with_place_and_message(bad: Bad) -> None:
    with pytest.raises(UserError) as caught:
        api.load(json.dumps(bad.data), name="job.yaml")
    name = bad.data["metadata"]["name"]
    place = f"job.yaml: {bad.kind}/{name}: {bad.place}"
    faults = {fault.place: str(fault) for fault in caught.value.faults}
    assert set(faults) == {place}, caught.value.text()
    assert bad.message in faults[place].removeprefix(place + ": ")


def test_the_table_is_large_enough_and_its_names_are_unique() -> None:
    assert len(TABLE) >= 60
    assert len({bad.name for bad in TABLE}) == len(TABLE)


@pytest.mark.parametrize("good", [JOB, ENDPOINT], ids=["job", "endpoint"])
def test_what_the_table_starts_from_is_good(good: dict) -> None:
    assert len(api.load(json.dumps(good))) == 1
