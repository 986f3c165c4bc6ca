"""Open-loop load: requests start when they are due, whether or not the server keeps up.

A closed loop (so many clients, each waiting for its answer) slows down with the server and hides
its queue; arrivals at a rate do not.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

IDS = range(500, 1000)
"""Token ids that prompts are made of: ordinary pieces of every vocabulary of a thousand tokens or more."""


@dataclass
class Outcome:
    """One request. Times in seconds.

    late:   how long after it was due it was sent: the load generator's own lag.
    ttft:   from sending to the first chunk of the answer.
    total:  from sending to the last chunk.
    gaps:   between chunks; a server that sends several tokens in one chunk has fewer.
    """

    late: float
    ttft: float = 0.0
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None for an answer of one token."""
        return (self.total - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def prompts(seed: int, length: int) -> Iterator[list[int]]:
    """Prompts of `length` random token ids. No two begin alike, so that no prefix cache can hit: the
    first ids count upwards in base 500, the others are random."""
    dice, number = random.Random(seed), seed * 1_000_003
    while True:
        digits, rest = [], number
        for _ in range(min(length, 6)):
            rest, digit = divmod(rest, len(IDS))
            digits.append(IDS[digit])
        yield digits + dice.choices(IDS, k=length - len(digits))
        number += 1


def arrivals(seed: int, rate: float, count: int) -> list[float]:
    """Seconds after the start at which `count` requests of a Poisson process of `rate` are due."""
    dice, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += dice.expovariate(rate)
        times.append(at)
    return times


class Client:
    """Sends completions as streams. Use as `async with`."""

    def __init__(self, url: str, model: str, output_tokens: int, timeout: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.model, self.output_tokens = model, output_tokens
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def __aenter__(self) -> Client:
        # No limit of connections: a limit would be a closed loop.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=self._timeout, read_bufsize=2**20
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.json()

    async def send(self, prompt: Sequence[int], due: float | None = None) -> Outcome:
        """One request, from now until its answer has ended. Faults are in `Outcome.error`."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,  # answers of the asked length, whatever the model would say
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = last = time.perf_counter()
        outcome = Outcome(late=0.0 if due is None else max(0.0, start - due))
        ended = False
        try:
            async with self._session.post(self.url + "/completions", json=body) as response:
                if response.status != 200:
                    outcome.error = f"{response.status}: {(await response.text())[:200]}"
                    return outcome
                async for line in response.content:
                    if not line.startswith(b"data:"):
                        continue
                    now, data = time.perf_counter(), line[5:].strip()
                    if data == b"[DONE]":
                        ended = True
                        break
                    event = json.loads(data)
                    if "error" in event:
                        outcome.error = str(event["error"].get("message", event["error"]))[:200]
                        return outcome
                    if event.get("choices"):
                        if outcome.ttft:
                            outcome.gaps.append(now - last)
                        else:
                            outcome.ttft = now - start
                        outcome.total, last = now - start, now
                    if event.get("usage"):
                        outcome.input_tokens = event["usage"]["prompt_tokens"]
                        outcome.output_tokens = event["usage"]["completion_tokens"]
        except TimeoutError:
            outcome.error = f"no answer after {self._timeout.total:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:200]
        if outcome.error is None and not (ended and outcome.output_tokens):
            outcome.error = "the stream ended early, without usage or [DONE]"
        return outcome


async def measure(
    client: Client, requests: Sequence[Sequence[int]], due: Sequence[float]
) -> tuple[list[Outcome], float]:
    """Sends request i `due[i]` seconds from now; the outcomes, and seconds until the last one ended."""
    start = time.perf_counter()

    async def at(prompt: Sequence[int], when: float) -> Outcome:
        await asyncio.sleep(start + when - time.perf_counter())
        return await client.send(prompt, start + when)

    outcomes = await asyncio.gather(*(at(p, w) for p, w in zip(requests, due, strict=True)))
    return list(outcomes), time.perf_counter() - start
