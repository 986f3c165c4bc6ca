"""/metrics and /readyz, in the loop's own thread: the cache is read while nobody changes it."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


async def start(address: str, registry: CollectorRegistry, ready: Callable[[], bool]) -> web.AppRunner:
    """Serves on `host:port`. The caller cleans the runner up."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready") if ready() else web.Response(status=503, text="filling the cache")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
    return runner
