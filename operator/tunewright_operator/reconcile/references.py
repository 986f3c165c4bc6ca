"""Objects that a spec names and somebody else makes: are they there?

Secrets are not among them: the operator may not read Secrets. A pod that lacks one says so itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tunewright_operator.api import FineTuneJobSpec, ServeEndpointSpec
from tunewright_operator.observe.job import Missing
from tunewright_operator.reconcile.client import Client
from tunewright_operator.reconcile.clock import Clock
from tunewright_operator.reconcile.resources import ACCOUNT, CLAIM, Resource
from tunewright_workloads.contract import uris

_FRESH = 60.0
_KINDS: dict[str, Resource] = {"PersistentVolumeClaim": CLAIM, "ServiceAccount": ACCOUNT}


def of_job(spec: FineTuneJobSpec) -> list[Missing]:
    """Every reference of a job, as it would be reported when missing."""
    named = [
        ("spec.model.source", spec.model.uri),
        *((f"spec.dataset.train[{i}]", uri) for i, uri in enumerate(spec.dataset.train)),
        *((f"spec.dataset.validation[{i}]", uri) for i, uri in enumerate(spec.dataset.validation)),
        ("spec.output.uri", spec.output.uri),
    ]
    return [*_claims(named), *_account(spec.service_account_name)]


def of_endpoint(spec: ServeEndpointSpec, model: str | None) -> list[Missing]:
    """Every reference of an endpoint; `model` is the URI that is served."""
    named = [("spec.model", model)] if model else []
    found = _claims(named)
    if spec.compile_cache is not None:
        found.append(Missing("PersistentVolumeClaim", spec.compile_cache.pvc, "spec.compileCache.pvc"))
    return [*found, *_account(spec.service_account_name)]


def _claims(named: Iterable[tuple[str, str]]) -> list[Missing]:
    found: dict[str, Missing] = {}
    for place, text in named:
        uri = uris.parse(text, place)
        if uri.scheme == "pvc":
            found.setdefault(uri.root, Missing("PersistentVolumeClaim", uri.root, place))
    return list(found.values())


def _account(name: str | None) -> list[Missing]:
    return [Missing("ServiceAccount", name, "spec.serviceAccountName")] if name else []


class References:
    """Asks the API server; what was there a minute ago is taken to be there."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client, self.clock = client, clock
        self._seen: dict[tuple[str, str, str], float] = {}

    async def missing(self, namespace: str, wanted: Iterable[Missing]) -> list[Missing]:
        """Those of `wanted` that do not exist."""
        absent = []
        for one in wanted:
            place = (namespace, one.kind, one.name)
            now = self.clock.monotonic()
            if now - self._seen.get(place, float("-inf")) < _FRESH:
                continue
            found: dict[str, Any] | None = await self.client.get(_KINDS[one.kind], namespace, one.name)
            if found is None:
                self._seen.pop(place, None)
                absent.append(one)
            else:
                self._seen[place] = now
        return absent
