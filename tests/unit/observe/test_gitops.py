"""What Argo CD and Flux make of every status that the operator writes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.argo import CONFIG_MAP, health
from unit.observe import test_endpoint, test_job

JOBS = {
    **{row[0]: (test_job.look(**row[1]).status, 3) for row in test_job.ON_ITS_WAY},
    **{row[0]: (test_job.look(**row[1]).status, 3) for row in test_job.ENDS},
}
ENDPOINTS = {row[0]: (test_endpoint.look(**row[1]).status, 2) for row in test_endpoint.ROWS}
STATUSES = [
    pytest.param(kind, status, generation, id=f"{kind}: {sentence}")
    for kind, found in (("FineTuneJob", JOBS), ("ServeEndpoint", ENDPOINTS))
    for sentence, (status, generation) in found.items()
]


def body(kind: str, status: dict[str, Any] | None, generation: int) -> dict[str, Any]:
    meta = {"name": "bot", "namespace": "team", "generation": generation}
    return {"kind": kind, "metadata": meta, **({"status": status} if status is not None else {})}


def kstatus(resource: dict[str, Any]) -> str:
    """sigs.k8s.io/cli-utils, pkg/kstatus/status: Compute for a kind that it does not know."""
    status = resource.get("status", {})
    seen = status.get("observedGeneration")
    if seen is not None and seen != resource["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", []):
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return "Failed"
    for condition in status.get("conditions", []):
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"


def truth(status: dict[str, Any]) -> str:
    return next(c["status"] for c in status["conditions"] if c["type"] == "Ready")


def test_the_tables_have_every_situation() -> None:
    phases = {status["phase"] for status, _ in JOBS.values()}
    assert phases == {
        "Pending", "Queued", "Provisioning", "Training", "Merging", "Evaluating", "Succeeded", "Failed", "Suspended",
    }  # fmt: skip
    phases = {status["phase"] for status, _ in ENDPOINTS.values()}
    assert phases >= {"Pending", "Provisioning", "Starting", "Verifying", "Ready", "Failed", "Stopped"}


@pytest.mark.parametrize(("kind", "status", "generation"), STATUSES)
def test_argo_cd_shows_the_health(kind: str, status: dict[str, Any], generation: int) -> None:
    resting = status["phase"] in ("Suspended", "Stopped") and truth(status) == "Unknown"
    held = next(c["reason"] for c in status["conditions"] if c["type"] == "Ready")
    wanted = {"True": "Healthy", "False": "Degraded"}.get(truth(status), "Progressing")
    if resting and held != "ScalingDown":
        wanted = "Suspended"
    assert health(body(kind, status, generation)) == (wanted, status["message"])


@pytest.mark.parametrize(("kind", "status", "generation"), STATUSES)
def test_kstatus_waits_for_what_is_on_its_way_and_fails_for_what_needs_somebody(
    kind: str, status: dict[str, Any], generation: int
) -> None:
    wanted = {"True": "Current", "False": "Failed", "Unknown": "InProgress"}[truth(status)]
    assert kstatus(body(kind, status, generation)) == wanted


@pytest.mark.parametrize(("kind", "status", "generation"), STATUSES)
def test_the_conditions_agree_with_each_other(kind: str, status: dict[str, Any], generation: int) -> None:
    found = {c["type"]: c for c in status["conditions"]}
    ready, moving, stuck = (found[name]["status"] for name in ("Ready", "Reconciling", "Stalled"))
    assert (moving, stuck) != ("True", "True")
    assert (stuck == "True") == (ready == "False")
    assert not (ready == "True" and moving == "True")
    assert status["observedGeneration"] == generation
    for condition in status["conditions"]:
        assert condition["observedGeneration"] == generation
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", condition["reason"])
        assert condition["lastTransitionTime"].endswith("Z")


@pytest.mark.parametrize("kind", ["FineTuneJob", "ServeEndpoint"])
def test_a_change_that_nobody_has_seen_yet_is_in_progress(kind: str) -> None:
    status, generation = JOBS["a published job is done"]
    assert health(body(kind, None, 1))[0] == "Progressing"
    assert health(body(kind, {}, 1))[0] == "Progressing"
    changed = body(kind, status, generation + 1)
    assert (health(changed)[0], kstatus(changed)) == ("Progressing", "InProgress")


def test_both_kinds_have_a_check() -> None:
    keys = {line.partition(":")[0].strip() for line in CONFIG_MAP.read_text().splitlines() if "_" in line}
    assert {
        f"resource.customizations.health.tunewright.dev_{k}" for k in ("FineTuneJob", "ServeEndpoint")
    } <= keys
