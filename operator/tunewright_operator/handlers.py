"""Kopf's decorators and nothing else: its watches feed the loop, its probe asks it."""

from __future__ import annotations

import os
from typing import Any

import kopf

from tunewright_operator.reconcile import server
from tunewright_operator.reconcile.client import Client
from tunewright_operator.reconcile.credentials import Credentials
from tunewright_operator.reconcile.loop import Loop
from tunewright_operator.reconcile.quiet import NoDiffBase, NoProgress
from tunewright_operator.reconcile.resources import WATCHED, Resource


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # In a few namespaces there are no rights to watch namespaces and CRDs of the whole cluster.
    settings.scanning.disabled = bool(memo.options.namespaces)
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 1.0
    settings.watching.chunk_size = 100
    settings.watching.reconnect_backoff = 0.5
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    for resource in WATCHED:
        if resource.selector:
            settings.watching.label_selectors[resource.group, resource.plural] = resource.selector
    memo.loop = Loop(
        Client(memo.credentials, reload=memo.reload, count=memo.metrics.count),
        memo.options,
        metrics=memo.metrics,
    )
    memo.server = await server.start(memo.options.metrics, memo.metrics.registry, lambda: memo.loop.ready)
    await memo.loop.start()


@kopf.on.cleanup()
async def end(memo: kopf.Memo, **_: Any) -> None:
    await memo.loop.stop()
    await memo.server.cleanup()


@kopf.on.login(errors=kopf.ErrorsMode.TEMPORARY, backoff=5.0)
async def login(memo: kopf.Memo, **_: Any) -> kopf.ConnectionInfo:
    found: Credentials = await memo.reload()
    return kopf.ConnectionInfo(
        server=found.server,
        ca_data=found.ca,
        insecure=found.insecure,
        token=found.bearer(),
        certificate_data=found.certificate,
        private_key_data=found.key,
        default_namespace=found.namespace,
        expiration=found.expiration(),
    )


@kopf.on.probe(id="loop", errors=kopf.ErrorsMode.PERMANENT, retries=1)
async def heartbeat(memo: kopf.Memo, **_: Any) -> str:
    problem = memo.loop.alive()
    if problem:
        raise kopf.PermanentError(problem)
    return f"pid {os.getpid()}: {len(memo.loop.cache)} objects"


def _watch(resource: Resource) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, id=resource.plural)
    async def seen(event: Any, memo: kopf.Memo, **_: Any) -> None:
        memo.loop.heard(resource, event["object"], event["type"] == "DELETED", event["type"] is None)


for _resource in WATCHED:
    _watch(_resource)
