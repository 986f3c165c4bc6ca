"""The HTTP side of the small engine: OpenAI's endpoints over one scheduler.

Nothing here computes: handlers turn requests into sequences and deltas into JSON or server-sent
events, so `/health` answers while a model loads or a long prompt is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.serve import answers
from tunewright_workloads.serve.protocol import ApiError, ChatRequest, CompletionRequest, parse
from tunewright_workloads.serve.sampling import Sampled, Sampling
from tunewright_workloads.serve.scheduler import Delta, Scheduler, Sequence, StoppedError
from tunewright_workloads.serve.text import Pieces

log = logging.getLogger(__name__)

MAX_BODY = 32 * 2**20
"""bytes; a prompt of the longest context is far below it."""


class Prompts(Protocol):
    """Prompts as token ids.

    text: a raw prompt, in which control tokens may stand.
    chat: a conversation by the checkpoint's template, in whose messages the text of a control token
          is ordinary text, as it was in training.
    """

    def text(self, prompt: str) -> list[int]: ...
    def chat(self, messages: list[dict[str, Any]]) -> list[int]: ...


@dataclass
class Engine:
    """A loaded model, ready to serve.

    length:       tokens that prompt and answer may have together.
    dtype:        of the arithmetic.
    stop_tokens:  ids that end a generation, as the checkpoint says.
    turn_end:     the one that ends a turn, and so an answer in a chat, whatever the checkpoint says.
    defaults:     sampling where a request says nothing (the checkpoint's generation_config.json).
    """

    name: str
    scheduler: Scheduler
    prompts: Prompts
    pieces: Pieces
    length: int
    vocab: int
    dtype: str
    stop_tokens: frozenset[int]
    turn_end: frozenset[int]
    bos: int | None
    defaults: Sampling
    created: int = field(default_factory=lambda: int(time.time()))


class State:
    """What the handlers see: no engine while it loads, none that is broken, none while it drains."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.requests: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.prompt_tokens = 0
        self.generation_tokens = 0

    def ready(self) -> Engine:
        if self.engine is None:
            raise ApiError("The model is still loading.", status=503, code="model_loading")
        if not self.engine.scheduler.healthy:
            raise ApiError("The engine has stopped.", status=503, code="engine_dead")
        return self.engine

    def collect(self) -> list[Any]:
        """Metrics under vLLM's names, so that one dashboard and one autoscaler read both engines."""
        labels = ["model_name"]
        name = [self.engine.name if self.engine else ""]
        waiting = self.engine.scheduler.waiting if self.engine else 0
        running = self.engine.scheduler.running if self.engine else 0
        families: list[Any] = []
        for key, text, value in (
            ("vllm:num_requests_waiting", "Requests that wait for a slot", waiting),
            ("vllm:num_requests_running", "Requests in a slot", running),
        ):
            gauge = GaugeMetricFamily(key, text, labels=labels)
            gauge.add_metric(name, value)
            families.append(gauge)
        for key, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens read", self.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", self.generation_tokens),
        ):
            counter = CounterMetricFamily(key, text, labels=labels)
            counter.add_metric(name, value)
            families.append(counter)
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests ended, by reason", labels=[*labels, "finished_reason"]
        )
        for reason, count in self.requests.items():
            finished.add_metric([*name, reason], count)
        return [*families, finished]


def create(state: State) -> Starlette:
    """The application over `state`, whose engine may come later."""
    registry = CollectorRegistry()
    registry.register(state)

    async def health(_: Request) -> Response:
        state.ready()
        return Response(status_code=200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(state.ready())]})

    async def one_model(request: Request) -> Response:
        engine = state.ready()
        _named(engine, request.path_params["name"])
        return JSONResponse(_card(engine))

    async def completions(request: Request) -> Response:
        engine = state.ready()
        asked = parse(CompletionRequest, await _body(request))
        _named(engine, asked.model)
        prompts = [_completion_tokens(engine, asked, p) for p in asked.prompts()]
        limits = [_limit(engine, len(p), asked.max_tokens or 16, "max_tokens", "prompt") for p in prompts]
        answer = answers.Completion(engine.name, engine.pieces, asked)
        return await _answer(state, request, answer, prompts, limits, asked, asked.logprobs)

    async def chat(request: Request) -> Response:
        engine = state.ready()
        asked = parse(ChatRequest, await _body(request))
        _named(engine, asked.model)
        messages = [m.model_dump(exclude_unset=True) for m in asked.messages]
        try:
            tokens = engine.prompts.chat(messages)
        except UserError as error:
            raise ApiError(str(error), param="messages") from None
        wanted = asked.max_completion_tokens or asked.max_tokens
        name = "max_completion_tokens" if asked.max_completion_tokens else "max_tokens"
        limit = _limit(engine, len(tokens), wanted, name, "messages")
        top = (asked.top_logprobs or 0) if asked.logprobs else None
        return await _answer(
            state, request, answers.Chat(engine.name, engine.pieces, asked), [tokens], [limit], asked, top
        )

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), status_code=error.status)

    async def missing(request: Request, _: Exception) -> Response:
        body = ApiError(
            f"There is no {request.method} {request.url.path}.", status=404, code="not_found"
        ).body()
        return JSONResponse(body, status_code=404)

    async def method(request: Request, _: Exception) -> Response:
        text = f"{request.url.path} does not take {request.method}."
        return JSONResponse(ApiError(text, status=405, code="method_not_allowed").body(), status_code=405)

    async def broken(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return JSONResponse(
            ApiError("The server failed; its log says why.", status=500).body(), status_code=500
        )

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        exception_handlers={ApiError: refused, 404: missing, 405: method, Exception: broken},
    )


def _card(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.name,
        "object": "model",
        "created": engine.created,
        "owned_by": "tunewright",
        "max_model_len": engine.length,
        "dtype": engine.dtype,
    }


def _named(engine: Engine, name: str) -> None:
    if name != engine.name:
        raise ApiError(
            f"The model {name!r} does not exist; this server has {engine.name!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise ApiError(f"The body is larger than {MAX_BODY} bytes.", status=413)
    return body


def _completion_tokens(engine: Engine, asked: CompletionRequest, prompt: str | list[int]) -> list[int]:
    """Token ids of one prompt; `<bos>` goes before a string as the model was trained to see it."""
    if isinstance(prompt, str):
        tokens = engine.prompts.text(prompt)
        if asked.add_special_tokens and engine.bos is not None and tokens[:1] != [engine.bos]:
            tokens = [engine.bos, *tokens]
        if not tokens:
            raise ApiError("prompt: must not be empty.", param="prompt")
        return tokens
    for token in prompt:
        if not 0 <= token < engine.vocab:
            raise ApiError(f"prompt: token id {token} is outside 0..{engine.vocab - 1}.", param="prompt")
    return prompt


def _limit(engine: Engine, prompt: int, wanted: int | None, param: str, prompt_param: str) -> int:
    """Tokens to generate at most. Raises ApiError when they do not fit the context."""
    room = engine.length - prompt
    if room < (wanted or 1):
        asked = "" if wanted is None else f" and {wanted} for the answer"
        raise ApiError(
            f"This model's maximum context length is {engine.length} tokens; "
            f"you asked for {prompt} for the prompt{asked}.",
            param=prompt_param if room < 1 else param,
            code="context_length_exceeded",
        )
    return wanted or room


def _sampling(engine: Engine, asked: CompletionRequest | ChatRequest) -> Sampling:
    d = engine.defaults
    bias = {int(k): v for k, v in (asked.logit_bias or {}).items()}
    for token in bias:
        if token >= engine.vocab:
            raise ApiError(
                f"logit_bias: token id {token} is outside 0..{engine.vocab - 1}.", param="logit_bias"
            )
    return Sampling(
        temperature=d.temperature if asked.temperature is None else asked.temperature,
        top_p=d.top_p if asked.top_p is None else asked.top_p,
        top_k=d.top_k if asked.top_k is None else max(asked.top_k, 0),
        seed=None if asked.seed is None else asked.seed % 2**64,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=bias,
        min_tokens=asked.min_tokens,
    )


async def _answer(
    state: State,
    request: Request,
    answer: answers.Answer,
    prompts: list[list[int]],
    limits: list[int],
    asked: CompletionRequest | ChatRequest,
    top: int | None,
) -> Response:
    """Starts one sequence a prompt and answers in one piece or as a stream."""
    engine = state.ready()
    loop, inbox = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Delta]]()

    def emitter(index: int) -> Callable[[Delta], None]:
        def emit(delta: Delta) -> None:
            # A closed loop has no clients left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(inbox.put_nowait, (index, delta))

        return emit

    sampling = _sampling(engine, asked)
    stop_tokens = engine.stop_tokens | (engine.turn_end if isinstance(asked, ChatRequest) else frozenset())
    if asked.ignore_eos:
        stop_tokens = frozenset()
    sequences = [
        Sequence(
            prompt=prompt,
            limit=limit,
            sampling=sampling,
            stop_tokens=stop_tokens,
            stops=asked.stops,
            top=top,
            emit=emitter(index),
        )
        for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]

    async def deltas() -> AsyncGenerator[tuple[int, Delta], None]:
        """Every delta of every sequence; cancels what is left when its reader goes away."""
        open_ = set(range(len(sequences)))
        try:
            for sequence in sequences:
                engine.scheduler.submit(sequence)
            while open_:
                index, delta = await inbox.get()
                if isinstance(delta.error, StoppedError):
                    raise ApiError("The server is shutting down.", status=503, code="shutting_down")
                if delta.error is not None:
                    state.requests["error"] += 1
                    raise ApiError("The engine stopped before the answer was complete.", status=500)
                state.generation_tokens += delta.token is not None
                if delta.finish:
                    open_.discard(index)
                    state.requests[delta.finish] += 1
                yield index, delta
        finally:
            for index in open_:
                sequences[index].cancel()
                state.requests["abort"] += 1

    state.prompt_tokens += sum(map(len, prompts))

    def usage() -> dict[str, Any]:
        prompt, generated = sum(map(len, prompts)), sum(len(s.generated) for s in sequences)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}

    if asked.stream:
        events = _events(answer, deltas(), usage, len(prompts), prompts)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    body = await _unless_gone(request, _collect(answer, deltas(), prompts))
    if body is None:  # the client is gone: nobody reads this
        return Response(status_code=499)
    return JSONResponse({**body, "usage": usage()})


async def _collect(
    answer: answers.Answer, deltas: AsyncGenerator[tuple[int, Delta], None], prompts: list[list[int]]
) -> dict[str, Any]:
    count = len(prompts)
    texts, finishes = [""] * count, [""] * count
    tokens: list[list[Sampled]] = [[] for _ in range(count)]
    ats: list[list[int]] = [[] for _ in range(count)]
    async with contextlib.aclosing(deltas) as stream:
        async for index, delta in stream:
            if delta.token is not None:
                tokens[index].append(delta.token)
                ats[index].append(len(texts[index]))
            texts[index] += delta.text
            finishes[index] = delta.finish or finishes[index]
    choices = [answer.whole(i, texts[i], tokens[i], ats[i], finishes[i]) for i in range(count)]
    if answer.asked.return_token_ids:
        for choice, prompt in zip(choices, prompts, strict=True):
            choice["prompt_token_ids"] = prompt
    return answer.envelope(answer.object, choices)


async def _events(
    answer: answers.Answer,
    deltas: AsyncGenerator[tuple[int, Delta], None],
    usage: Callable[[], dict[str, Any]],
    count: int,
    prompts: list[list[int]],
) -> AsyncIterator[str]:
    """Server-sent events: a chunk a token (as vLLM does, with or without text, so that clients can
    time them), then usage if asked, then [DONE]."""
    with_usage = answer.asked.stream_options is not None and answer.asked.stream_options.include_usage
    sent, first = [0] * count, set(range(count))

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        body = answer.envelope(answer.chunk, choices)
        if with_usage:
            body["usage"] = None
        return f"data: {json.dumps({**body, **more}, ensure_ascii=False)}\n\n"

    async with contextlib.aclosing(deltas) as stream:
        try:
            for index in range(count):
                opening = answer.opening(index)
                if opening is not None:
                    yield event([opening])
            async for index, delta in stream:
                tokens = [delta.token] if delta.token is not None else []
                part = answer.part(index, delta.text, tokens, sent[index], delta.finish)
                if answer.asked.return_token_ids and index in first:
                    first.discard(index)
                    part["prompt_token_ids"] = prompts[index]
                yield event([part])
                sent[index] += len(delta.text)
        except ApiError as error:
            yield f"data: {json.dumps(error.body())}\n\n"
        else:
            if with_usage:
                yield event([], usage=usage())
        yield "data: [DONE]\n\n"


async def _unless_gone(request: Request, work: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of `work`, or None, with it cancelled, once the client has disconnected."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
