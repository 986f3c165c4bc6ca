"""Answers in the shapes of OpenAI's two endpoints: whole ones and the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tunewright_workloads.serve.protocol import ChatRequest, CompletionRequest
from tunewright_workloads.serve.sampling import Sampled
from tunewright_workloads.serve.text import Pieces


class Answer:
    """One request's answer in one endpoint's shape. Choice `index` belongs to prompt `index`."""

    object: str
    chunk: str
    prefix: str

    def __init__(self, model: str, pieces: Pieces, asked: CompletionRequest | ChatRequest) -> None:
        self.model, self.pieces, self.asked = model, pieces, asked
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """What stands round the choices; kind: `object` of a whole answer, `chunk` of a part."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def name(self, token: int) -> str:
        """How a token is named in log-probabilities."""
        if self.asked.return_tokens_as_token_ids:
            return f"token_id:{token}"
        return self.pieces.bytes(token).decode("utf-8", errors="replace")

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a choice, where the shape has one."""
        return None

    def part(
        self, index: int, text: str, tokens: list[Sampled], at: int, finish: str | None
    ) -> dict[str, Any]:
        """A choice of a chunk: the text and tokens that have come, from character `at` on."""
        raise NotImplementedError

    def whole(
        self, index: int, text: str, tokens: list[Sampled], ats: list[int], finish: str
    ) -> dict[str, Any]:
        """A choice of a whole answer; ats: the character at which each token begins."""
        raise NotImplementedError


class Completion(Answer):
    """An answer of /v1/completions."""

    object = chunk = "text_completion"
    prefix = "cmpl"

    def part(
        self, index: int, text: str, tokens: list[Sampled], at: int, finish: str | None
    ) -> dict[str, Any]:
        return self.whole(index, text, tokens, [at] * len(tokens), finish)

    def whole(
        self, index: int, text: str, tokens: list[Sampled], ats: list[int], finish: str | None
    ) -> dict[str, Any]:
        assert isinstance(self.asked, CompletionRequest)
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        if self.asked.logprobs is not None:
            choice["logprobs"] = {
                "tokens": [self.name(t.token) for t in tokens],
                "token_logprobs": [t.logprob for t in tokens],
                # As OpenAI does: the alternatives, and the chosen token whether among them or not.
                "top_logprobs": [
                    {**{self.name(i): p for i, p in t.top}, self.name(t.token): t.logprob} for t in tokens
                ],
                "text_offset": ats,
            }
        if self.asked.return_token_ids:
            choice["token_ids"] = [t.token for t in tokens]
        return choice


class Chat(Answer):
    """An answer of /v1/chat/completions."""

    object, chunk = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def part(
        self, index: int, text: str, tokens: list[Sampled], at: int, finish: str | None
    ) -> dict[str, Any]:
        delta = {"content": text} if text or not finish else {}
        choice = {"index": index, "delta": delta, "logprobs": self._logprobs(tokens), "finish_reason": finish}
        return self._ids(choice, tokens)

    def whole(
        self, index: int, text: str, tokens: list[Sampled], ats: list[int], finish: str
    ) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish,
        }
        return self._ids(choice, tokens)

    def _ids(self, choice: dict[str, Any], tokens: list[Sampled]) -> dict[str, Any]:
        if self.asked.return_token_ids:
            choice["token_ids"] = [t.token for t in tokens]
        return choice

    def _logprobs(self, tokens: list[Sampled]) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None

        def entry(token: int, logprob: float) -> dict[str, Any]:
            data = list(self.pieces.bytes(token))
            return {"token": self.name(token), "logprob": logprob, "bytes": data}

        content = [
            {**entry(t.token, t.logprob), "top_logprobs": [entry(i, p) for i, p in t.top]} for t in tokens
        ]
        return {"content": content, "refusal": None}
