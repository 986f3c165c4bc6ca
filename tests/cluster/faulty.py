"""A proxy before the API server that does, on demand, what networks and API servers do on bad days.

An operator that is given its address meets cut watches, 410 Gone, refused writes and lost answers
from the real API server's side of the wire, one at a time and when the test says so.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from .api import Cluster
from .process import free_ports

LOST = "lost"
"""The API server does what is asked, and the answer never arrives."""
EXPIRED = "expired"
"""A watch is accepted and its first line says 410: what it asks for is no longer known."""
CLOSED = "closed"
"""The connection is closed before the API server hears of it."""

_PASSED = ("Authorization", "Content-Type", "Accept")
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One request as a fault decides on it."""

    method: str
    path: str
    watch: bool


Fault = Callable[[Asked], str | int | None]
"""What happens to a request: nothing (None), an HTTP status instead of an answer, or a word from above."""


class Faulty:
    """The proxy, in a thread of its own. Plain HTTP on loopback, HTTPS to the API server behind."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked: list[tuple[Asked, str | int | None]] = []
        self._fault: Fault = lambda asked: None
        self._watches: dict[int, web.Request] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def fault(self, fault: Fault | None) -> None:
        """From now on requests meet this; None: nothing happens to them."""
        self.asked.clear()
        self._fault = fault or (lambda asked: None)

    def met(self, what: str | int) -> int:
        """How many requests met this since the fault was set."""
        return sum(1 for _, act in self.asked if act == what)

    def cut(self) -> int:
        """Ends every open watch in the middle of its stream. Returns how many there were."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(30)

    async def _cut(self) -> int:
        there = list(self._watches.values())
        for request in there:
            _drop(request)
        return len(there)

    async def _open(self) -> None:
        tls = ssl.create_default_context(cafile=str(self.cluster.ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _close(self) -> None:
        await self._cut()
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path, request.query.get("watch") == "true")
        act = self._fault(asked)
        self.asked.append((asked, act))
        if act == CLOSED:
            return _drop(request)
        if isinstance(act, int):
            return web.json_response(_status(act), status=act)
        if act == EXPIRED:
            return web.Response(text=json.dumps({"type": "ERROR", "object": _status(410)}) + "\n")
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        async with self._session.request(
            request.method,
            self.cluster.url + request.path_qs,
            data=await request.read() or None,
            headers=headers,
            skip_auto_headers=("Content-Type",),
        ) as answer:
            if asked.watch and answer.status == 200:
                return await self._stream(request, answer)
            text = await answer.read()
            if act == LOST:
                return _drop(request)
            return web.Response(status=answer.status, body=text, content_type=answer.content_type)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        here = web.StreamResponse(headers={"Content-Type": "application/json"})
        await here.prepare(request)
        self._watches[id(request)] = request
        try:
            async for chunk in answer.content.iter_any():
                await here.write(chunk)
        except ConnectionError:
            pass  # cut, or the operator went away
        finally:
            del self._watches[id(request)]
        return here


def _drop(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(code: int) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": _REASONS[code],
        "message": f"the test answers {code}",
        "code": code,
    }
