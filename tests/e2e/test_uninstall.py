"""After the quickstart is deleted and the chart is uninstalled, nothing of ours is left."""

from __future__ import annotations

import pytest
from tests.e2e.story import Left

pytestmark = pytest.mark.timeout(3600)


def test_deleting_the_resources_leaves_no_orphan(removed: Left) -> None:
    assert set().union(*removed.deleted.values()) == set()


def test_uninstalling_the_chart_leaves_nothing_of_ours_running(removed: Left) -> None:
    assert removed.running == []
    assert {one for one in removed.system if "tunewright" in one} == set()
    kept = {
        one
        for one in removed.uninstalled
        if "customresourcedefinition" not in one and "apiservice" not in one
    }
    assert kept == set()


def test_the_crds_are_kept_until_somebody_deletes_them(removed: Left) -> None:
    crds = {one for one in removed.uninstalled if one.startswith("customresourcedefinition")}
    assert {one.partition("/")[2] for one in crds} == {
        "finetunejobs.tunewright.dev",
        "serveendpoints.tunewright.dev",
    }
    assert removed.at_last == set()
