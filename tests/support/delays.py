"""An OpenAI server with known delays, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Delays:
    """Seconds before the first token and between tokens; what came in.

    refuse: every n-th request gets a 503; break_: every n-th stream ends without its last chunks.
    together: no request is answered before so many have come.
    firsts, gaps: what the delays really were, on a machine that has other things to do.
    """

    ttft: float = 0.05
    itl: float = 0.01
    refuse: int = 0
    break_: int = 0
    room: int = 4096
    together: int = 0
    url: str = ""
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "slow", "owned_by": "delays", "max_model_len": self.room}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        self.prompts.append(body["prompt"])
        number = len(self.prompts)
        if self.refuse and number % self.refuse == 0:
            return web.json_response({"error": {"message": "busy"}}, status=503)
        loop = asyncio.get_running_loop()
        start, response = loop.time(), web.StreamResponse()
        while len(self.prompts) < self.together:
            await asyncio.sleep(0.01)
        await response.prepare(request)
        before = 0.0
        for token in range(body["max_tokens"]):
            await asyncio.sleep(start + self.ttft + token * self.itl - loop.time())
            if self.break_ and number % self.break_ == 0 and token:
                return response
            now = loop.time()
            if token:
                self.gaps.append(now - before)
            else:
                self.firsts.append(now - start)
            before = now
            choice = {"index": 0, "text": "x", "finish_reason": None}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await response.write(
            f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
        )
        return response


@contextmanager
def server(delays: Delays) -> Iterator[Delays]:
    """The server while the context lasts; `delays.url` is where it is."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        application = web.Application(client_max_size=2**26)
        application.router.add_get("/v1/models", delays.models)
        application.router.add_post("/v1/completions", delays.completions)
        runner = web.AppRunner(application, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        delays.url = "http://127.0.0.1:%d" % runner.addresses[0][1]  # noqa: UP031
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield delays
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
