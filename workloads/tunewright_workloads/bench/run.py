"""A whole load test: check, warm up, sweep the rates, report."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import islice
from typing import Any

import aiohttp

from tunewright_workloads.bench import figures
from tunewright_workloads.bench.load import Client, Outcome, arrivals, measure, prompts
from tunewright_workloads.contract.accelerators import accelerator, slice_of
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.configs import BenchConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.report import HardwareRecord

log = logging.getLogger("tunewright.bench")

WARM_TOGETHER = 4
LATE = 0.01
"""Seconds of the generator's own lag (p99 or worst) above which it is said: the figures then include it."""


def run(config: BenchConfig) -> BenchReport:
    """Raises UserError for settings that cannot give the figures asked for, RuntimeError when the
    server fails."""
    figures.check(config.requests, config.percentiles or ())
    chip = accelerator(config.accelerator, "accelerator")
    rows = slice_of(config.accelerator, config.topology, config.count, place="accelerator")
    hardware = HardwareRecord(
        type=chip.name, topology=config.topology, chips=rows.chips, hosts=rows.hosts,
        mode=config.provisioning, price=chip.quote(config.provisioning).price,
    )  # fmt: skip
    slo = figures.Slo(config.slo_ttft_ms, config.slo_tpot_ms)
    floor = figures.floor_ms(config.params, config.input_tokens, chip, rows)
    report = asyncio.run(_run(config, hardware, slo, floor))
    for found in report.points:
        if found.under_floor:
            log.warning(
                "%d of %d requests at %g/s had their first token before %.2f ms, in which the slice cannot read "
                "the prompt even at its peak: a prefix cache, a smaller model or other hardware answered",
                found.under_floor, found.requests, found.rate, floor,
            )  # fmt: skip
    return report


async def _run(
    config: BenchConfig, hardware: HardwareRecord, slo: figures.Slo, floor: float | None
) -> BenchReport:
    source = prompts(config.seed, config.input_tokens)
    async with Client(config.url, config.model, config.output_tokens, config.timeout) as client:
        engine = await _check(client, config)
        await _warm(client, list(islice(source, config.warmup)))
        points = []
        for number, rate in enumerate(config.rates):
            due = arrivals(config.seed + number, rate, config.requests)
            log.info("%d requests at %g/s, about %.0f s", config.requests, rate, due[-1])
            outcomes, seconds = await measure(client, list(islice(source, config.requests)), due)
            points.append(figures.point(rate, outcomes, seconds, slo, floor))
            _say(rate, outcomes)
    limits = {"ttftMs": config.slo_ttft_ms, "tpotMs": config.slo_tpot_ms}
    return BenchReport(
        model=config.model,
        engine=engine,
        hardware=hardware,
        input_tokens=config.input_tokens,
        output_tokens=config.output_tokens,
        warmup=config.warmup,
        unique_prompts=True,
        seed=config.seed,
        slo={name: limit for name, limit in limits.items() if limit is not None},
        points=points,
    )


def only_model(url: str) -> str:
    """The name of the server's model, where it has one. Raises UserError where it has several."""

    async def ask() -> list[str]:
        async with Client(url, "", 1, 30.0) as client:
            return [str(card.get("id")) for card in await _cards(client)]

    names = asyncio.run(ask())
    if len(names) != 1:
        raise UserError(Fault("--model", f"is required: the server lists {', '.join(names) or 'no model'}"))
    return names[0]


async def _cards(client: Client) -> list[dict[str, Any]]:
    try:
        return list((await client.get("/models")).get("data", []))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise RuntimeError(f"{client.url}/models does not answer: {error or type(error).__name__}") from None


async def _check(client: Client, config: BenchConfig) -> str:
    """That the server has the model and the room; who serves it."""
    cards = await _cards(client)
    card = next((c for c in cards if c.get("id") == config.model), None)
    if card is None:
        names = ", ".join(str(c.get("id")) for c in cards)
        raise UserError(Fault("model", f"must be one that the server lists: {names}", show(config.model)))
    room, asked = card.get("max_model_len"), config.input_tokens + config.output_tokens
    if room is not None and asked > room:
        raise UserError(
            Fault(
                "inputTokens", f"must be at most {room} with outputTokens, the server's context", str(asked)
            )
        )
    return str(card.get("owned_by", "unknown"))


async def _warm(client: Client, requests: list[list[int]]) -> None:
    """Sends the warm-up a few at a time. Raises RuntimeError when one fails: what follows would, too."""
    for start in range(0, len(requests), WARM_TOGETHER):
        for outcome in await asyncio.gather(*map(client.send, requests[start : start + WARM_TOGETHER])):
            if outcome.error:
                raise RuntimeError(f"a request of the warm-up failed: {outcome.error}")


def _say(rate: float, outcomes: list[Outcome]) -> None:
    errors = Counter(o.error for o in outcomes if o.error)
    for error, count in errors.most_common(3):
        log.warning("%d requests at %g/s failed: %s", count, rate, error)
    late = figures.percentile([o.late for o in outcomes], 99)
    if late > LATE:
        log.warning(
            "this machine sent requests up to %.0f ms late (p99): use a faster or idler client", late * 1e3
        )
