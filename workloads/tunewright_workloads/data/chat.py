"""Rows as token ids and the mask of what is trained.

The row is rendered once, by the checkpoint's own template, and the mask is read from the control
tokens of the result: everything between `<|turn>model\\n` and `<turn|>` is the model's, the closing
`<turn|>` included (so that it learns to stop), and what the environment says inside that turn
(`<|tool_response>...<tool_response|>`) is not. Rendering prefixes and subtracting lengths would be
wrong: continued turns and reasoning depend on what comes later.

That reading is safe because text of users cannot hold control tokens: before rendering, their text
is replaced by stand-ins, and put back as ordinary text when the pieces are encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.data.rows import Row
from tunewright_workloads.data.tokenizer import Tokenizer

LossOn = Literal["assistant", "completion", "all"]

TURN, TURN_END = "<|turn>", "<turn|>"
RESPONSE, RESPONSE_END = "<|tool_response>", "<tool_response|>"
CHANNEL, CHANNEL_END = "<|channel>", "<channel|>"
MODEL = "model"

_FIELD = {"messages": "messages", "prompt-completion": "prompt", "text": "text"}
_STANDINS = "\U000f0000"
_STANDIN = re.compile("[\U000f0000-\U000f0fff]")
"""First of a plane of private-use characters: one a control token."""


@dataclass(slots=True)
class Piece:
    """A control token (`token` is its id) or a text, and whether it is trained."""

    text: str
    token: int | None
    trained: bool


@dataclass(slots=True)
class Example:
    """One row ready for batches. `mask[i]`: token i is a target that is trained."""

    tokens: np.ndarray
    mask: np.ndarray
    row: Row
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rendered:
    """A chunk of rows on its way: pieces by row, and the texts whose ids are being made."""

    rows: Sequence[Row]
    made: list[tuple[list[Piece], list[str]] | Fault]
    texts: list[str]
    ids: Future[list[list[int]]] | None = None


@dataclass
class Encoder:
    """Rows to examples; keeps the ids of texts that come again in every row.

    thinking: what an answer thinks is trained too, in its channel; templates drop it from all but
    the last turn's tool calls.
    """

    tokenizer: Tokenizer
    loss_on: LossOn = "assistant"
    thinking: bool = False
    _cache: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(self.tokenizer.control, key=len, reverse=True)
        # A control token without "<" ([BOS] of other families) would slip through the quick checks below.
        self._quick = all("<" in name for name in names)
        self._standin = {name: chr(ord(_STANDINS) + i) for i, name in enumerate(names)}
        self._original = {mark: name for name, mark in self._standin.items()}
        # Stand-ins that become the control token itself: channels that the template must not see.
        self._channel = {
            name: chr(ord(_STANDINS) + len(names) + i) for i, name in enumerate((CHANNEL, CHANNEL_END))
        }
        back = {mark: name for name, mark in self._channel.items()}
        self._reopen = re.compile("[" + "".join(back) + "]")
        self._back = back
        self._restore = re.compile("[" + "".join(self._original) + "]")
        self._stops_after_call = self.tokenizer.control.get(RESPONSE) in self.tokenizer.stop_ids

    def pieces(self, row: Row) -> tuple[list[Piece], list[str]]:
        """The row's rendered text in pieces, and what should be said about it.

        Raises UserError (place: the row's field) when the template refuses it.
        """
        notes = list(row.notes)
        strings = [row.text, *_strings([*row.messages, *row.tools])]
        if any(not s.isascii() and _STANDIN.search(s) for s in strings):
            raise UserError(
                Fault(
                    _FIELD[row.format],
                    "holds characters of the private-use plane U+F0000, which are used internally here",
                    None,
                    "Remove them.",
                )
            )
        if row.format == "text":
            notes += self._literal([row.text])
            t = self.tokenizer
            return [
                Piece(t.bos_token, t.bos_id, False),
                Piece(row.text, None, True),
                Piece(t.eos_token, t.eos_id, True),
            ], notes
        notes += self._literal(s for m in row.messages for s in _strings(_safe(m)))
        messages = [self._message(m) for m in row.messages]
        if not self.thinking:
            answers = [m for m in row.messages if m["role"] == "assistant"]
            if any(CHANNEL in s for m in answers for s in _strings(m.get("content"))):
                notes.append(
                    "thinking inside an answer is dropped by the template (dataset.thinking keeps it)"
                )
            if any(m.get("reasoning") or m.get("reasoning_content") for m in answers):
                notes.append(
                    "reasoning is dropped by the template but beside the last turn's tool calls "
                    "(dataset.thinking keeps it)"
                )
        text = self.tokenizer.render_chat(messages, tools=[self._hide(t) for t in row.tools])
        return self._mark(text), notes

    def _literal(self, strings: Iterable[str]) -> list[str]:
        found: dict[str, None] = {}
        for text in strings:
            if "<" in text or not self._quick:
                found.update(dict.fromkeys(self.tokenizer.pattern.findall(text)))
        return [f"holds the text of the control token {name}, encoded as ordinary text" for name in found]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with stand-ins for control tokens. An assistant's channels stay: the template
        drops them by their text."""
        keep = message["role"] == "assistant"
        hidden = {k: self._hide(v, keep and k == "content") for k, v in message.items()}
        if keep and self.thinking:
            hidden["content"] = self._opened(hidden["content"])
            said = hidden.get("reasoning") or hidden.get("reasoning_content")
            if said and not hidden.get("tool_calls"):
                thought = self._opened(f"{CHANNEL}thought\n{said}\n{CHANNEL_END}")
                content = hidden["content"]
                for key in ("reasoning", "reasoning_content"):  # some templates would say it twice
                    hidden.pop(key, None)
                hidden["content"] = (
                    [{"type": "text", "text": thought}, *content]
                    if isinstance(content, list)
                    else thought + content
                )
        return hidden

    def _opened(self, value: Any) -> Any:
        """Content whose channels the template takes for text."""
        if isinstance(value, str):
            for name, mark in self._channel.items():
                value = value.replace(name, mark)
            return value
        if isinstance(value, list):
            return [self._opened(v) for v in value]
        if isinstance(value, Mapping):
            return {k: self._opened(v) for k, v in value.items()}
        return value

    def _hide(self, value: Any, channels: bool = False) -> Any:
        if isinstance(value, str):
            if self._quick and "<" not in value:
                return value
            return self.tokenizer.pattern.sub(
                lambda m: m[0] if channels and m[0] in (CHANNEL, CHANNEL_END) else self._standin[m[0]], value
            )
        if isinstance(value, Mapping):
            return {self._hide(k): self._hide(v, channels) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(v, channels) for v in value]
        return value

    def _mark(self, text: str) -> list[Piece]:
        """Splits rendered text at its control tokens and decides what is trained."""
        if self.thinking:
            text = self._reopen.sub(lambda m: self._back[m[0]], text)
        control = self.tokenizer.control
        pieces: list[Piece] = []
        model = response = header = False
        turns: list[tuple[int, bool]] = []  # (first piece, the model's?)
        for part in self.tokenizer.pattern.split(text):
            if not part:
                continue
            token = control.get(part)
            if token is None:
                if header:
                    role, newline, rest = part.partition("\n")
                    model, header = role == MODEL, False
                    turns.append((len(pieces), model))
                    pieces.append(Piece(role + newline, None, False))
                    if rest:
                        pieces.append(Piece(rest, None, model))
                else:
                    pieces.append(Piece(part, None, model and not response))
                continue
            trained = model and not response
            if part == TURN:
                model, response, header, trained = False, False, True, False
            elif part == RESPONSE:
                trained = model and self._stops_after_call
                response = True
            elif part == RESPONSE_END:
                response = trained = False
            pieces.append(Piece(part, token, trained))
            if part == TURN_END:
                model = response = False
        self._empty(pieces)
        if self.loss_on == "all":
            for piece in pieces:
                piece.trained = piece.token != self.tokenizer.bos_id
        elif self.loss_on == "completion":
            last = max((i for i, is_model in turns if is_model), default=len(pieces))
            for piece in pieces[:last]:
                piece.trained = False
        return pieces

    @staticmethod
    def _empty(pieces: list[Piece]) -> None:
        """A model's turn with nothing in it would train the end of turn alone: not trained."""
        for i, piece in enumerate(pieces):
            if piece.text == TURN_END and piece.trained and i and pieces[i - 1].text == f"{MODEL}\n":
                piece.trained = False

    def encode(self, rows: Sequence[Row]) -> Iterator[Example | Fault]:
        """Examples of rows, in order, with a fault for a row that the template refuses."""
        return self.stream([rows])

    def stream(self, chunks: Iterable[Sequence[Row]]) -> Iterator[Example | Fault]:
        """The same of many chunks. A chunk's texts are encoded in one call, which uses all cores,
        while the next chunk is read and rendered."""
        with ThreadPoolExecutor(1) as pool:
            waiting: _Rendered | None = None
            for rows in chunks:
                rendered = self._render(rows)
                rendered.ids = pool.submit(
                    self.tokenizer.encode_plain, [self._text(t) for t in rendered.texts]
                )
                if waiting is not None:
                    yield from self._assemble(waiting)
                waiting = rendered
            if waiting is not None:
                yield from self._assemble(waiting)

    def _render(self, rows: Sequence[Row]) -> _Rendered:
        made: list[tuple[list[Piece], list[str]] | Fault] = []
        wanted: dict[str, None] = {}
        for row in rows:
            try:
                pieces, notes = self.pieces(row)
            except UserError as error:
                fault = error.faults[0]
                if fault.place not in _FIELD.values():
                    raise
                made.append(Fault(f"{row.place}: {_FIELD[row.format]}", fault.rule, fault.value, fault.fix))
                continue
            made.append((pieces, notes))
            for piece in pieces:
                if piece.token is None and piece.text not in self._cache:
                    wanted[piece.text] = None
        return _Rendered(rows, made, list(wanted))

    def _assemble(self, rendered: _Rendered) -> Iterator[Example | Fault]:
        assert rendered.ids is not None
        ids = dict(zip(rendered.texts, rendered.ids.result(), strict=True))
        self._cache.update((t, i) for t, i in ids.items() if len(t) <= 16 and len(self._cache) < 4096)
        for row, item in zip(rendered.rows, rendered.made, strict=True):
            if isinstance(item, Fault):
                yield item
                continue
            pieces, notes = item
            tokens: list[int] = []
            spans: list[tuple[int, int]] = []
            for piece in pieces:
                start = len(tokens)
                if piece.token is not None:
                    tokens.append(piece.token)
                else:
                    known = ids.get(piece.text)
                    tokens += self._cache[piece.text] if known is None else known
                if piece.trained:
                    spans.append((start, len(tokens)))
            mask = np.zeros(len(tokens), np.bool_)
            for start, end in spans:
                mask[start:end] = True
            yield Example(np.asarray(tokens, np.int32), mask, row, tuple(notes))

    def _text(self, text: str) -> str:
        return text if text.isascii() else self._restore.sub(lambda m: self._original[m[0]], text)

    def prompt(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation up to where the model answers; users' text is never control."""
        hidden = [self._message(m) for m in messages]
        text = self.tokenizer.render_chat(hidden, True, [self._hide(t) for t in tools or ()])
        ids: list[int] = []
        for piece in self._mark(text):
            ids += (
                [piece.token]
                if piece.token is not None
                else self.tokenizer.encode(self._text(piece.text), control=False)
            )
        return ids


def _safe(message: Mapping[str, Any]) -> Any:
    """A message without an assistant's channels, which the template handles itself."""
    if message["role"] != "assistant":
        return message
    return {
        k: [s.replace(CHANNEL, "").replace(CHANNEL_END, "") for s in _strings(v)] if k == "content" else v
        for k, v in message.items()
    }


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
