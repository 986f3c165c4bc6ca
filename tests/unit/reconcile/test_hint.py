"""When the refusal of a pod is told: not at the first one, and not for one from before a job was resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tunewright_operator.observe import times
from tunewright_operator.reconcile import job

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def ago(seconds: int) -> str:
    return times.show(NOW - timedelta(seconds=seconds))


def hint(workload: dict[str, Any], *refusals: tuple[int, int]) -> str | None:
    """What is told of refusals that came first and last so many seconds ago."""

    async def events(*_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        for first, last in refusals:
            yield {
                "reason": "FailedCreate",
                "message": "exceeded quota",
                "firstTimestamp": ago(first),
                "lastTimestamp": ago(last),
            }

    loop: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW), client=SimpleNamespace(list=events))
    return asyncio.run(job._hint(loop, {"train": workload}, []))


def workload(created: int, resumed: int | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "bot-train", "namespace": "team", "uid": "u", "creationTimestamp": ago(created)},
        "spec": spec,
        "status": {} if resumed is None else {"startTime": ago(resumed)},
    }


@pytest.mark.parametrize(
    ("found", "refusals", "told"),
    [
        pytest.param(workload(60), [(55, 5)], True, id="refused since it was made"),
        pytest.param(workload(60, 30), [(29, 28)], False, id="refused at first, and not tried again yet"),
        pytest.param(workload(5), [(4, 1)], False, id="too young"),
        pytest.param(workload(900, 20), [(800, 700)], False, id="refused before it was resumed"),
        pytest.param(workload(900, 40), [(800, 5)], True, id="refused since it was resumed, too"),
        pytest.param(workload(900, suspend=True), [(800, 5)], False, id="suspended"),
    ],
)
def test_a_refusal_is_told_once_it_lasts(
    found: dict[str, Any], refusals: list[tuple[int, int]], told: bool
) -> None:
    assert hint(found, *refusals) == ("exceeded quota" if told else None)
