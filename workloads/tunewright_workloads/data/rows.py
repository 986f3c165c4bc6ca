"""Records as training rows: which format a row has, and everything that is wrong with it.

A row becomes either a conversation, in the form chat templates expect, or a plain text. Roles,
contents and tool calls are checked here so that a template never sees what it would render
wrongly (a null as the word `None`, a JSON string as a mapping).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

from tunewright_workloads.contract.faults import Fault, nearest, show
from tunewright_workloads.data import files

Format = Literal["auto", "messages", "prompt-completion", "text"]
ROLES = ("system", "developer", "user", "assistant", "tool")

_ALIASES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant",
    "chatgpt": "assistant", "function": "tool", "observation": "tool", "instruction": "user",
}  # fmt: skip
_MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "video_url")
_COLUMNS = "messages, prompt and completion, or text"


@dataclass(frozen=True, slots=True)
class Row:
    """One valid row. Exactly one of `messages` and `text` is set.

    tail: from which message on `lossOn: completion` trains; None: the last model turn.
    """

    file: str
    line: int
    format: Literal["messages", "prompt-completion", "text"]
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    text: str = ""
    extra: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def read(record: files.Record, wanted: Format, loss_on: str) -> Row | list[Fault]:
    """The row in a record, or everything that is wrong with it."""
    reader = _Reader(record, loss_on)
    row = reader.row(wanted)
    return reader.faults if reader.faults or row is None else row


class _Reader:
    def __init__(self, record: files.Record, loss_on: str) -> None:
        self.record, self.value, self.loss_on = record, record.value, loss_on
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    def fault(
        self, field: str, rule: str, value: Any = None, fix: str | None = None, *, null: bool = False
    ) -> None:
        shown = show(value) if value is not None or null else None
        self.faults.append(Fault(f"{self.record.place}: {field}", rule, shown, fix))

    def row(self, wanted: Format) -> Row | None:
        kind = self.kind(wanted)
        if kind is None:
            return None
        r = self.record
        if kind == "text":
            text = self.text("text", self.value["text"])
            if text is not None and not text.strip():
                self.fault("text", "must not be empty", text)
            if text is not None:
                self.rendered("text", text)
            return Row(r.file, r.line, "text", text=text or "", extra=self.extra("text"))
        tools = self.tools()
        if kind == "prompt-completion":
            messages = self.side("prompt", "user") + self.side("completion", "assistant")
            self.order(messages, "completion")
            return Row(
                r.file, r.line, kind, tuple(messages), tuple(tools),
                extra=self.extra("prompt", "completion", "tools"), notes=tuple(self.notes),
            )  # fmt: skip
        messages = self.messages("messages", self.value["messages"])
        self.order(messages, "messages")
        return Row(
            r.file, r.line, "messages", tuple(messages), tuple(tools),
            extra=self.extra("messages", "tools"), notes=tuple(self.notes),
        )  # fmt: skip

    def extra(self, *known: str) -> tuple[str, ...]:
        return tuple(key for key in self.value if key not in known)

    def kind(self, wanted: Format) -> Literal["messages", "prompt-completion", "text"] | None:
        keys = self.value
        has: dict[str, bool] = {
            "messages": "messages" in keys,
            "prompt-completion": "prompt" in keys and "completion" in keys,
            "text": "text" in keys,
        }
        if wanted != "auto":
            if has[wanted]:
                return wanted
            needs = {"messages": "messages", "prompt-completion": "prompt and completion", "text": "text"}
            found = [k for k, v in has.items() if v]
            fix = (
                f"The row has the format {found[0]}; dataset.format: auto takes it." if found else self.hint()
            )
            self.fault("(row)", f"format {wanted} needs {needs[wanted]}", list(keys), fix)
            return None
        if has["messages"]:
            return "messages"
        if has["prompt-completion"]:
            return "prompt-completion"
        if has["text"]:
            return "text"
        self.fault("(row)", f"must have {_COLUMNS}", list(keys), self.hint())
        return None

    def hint(self) -> str | None:
        keys = set(self.value)
        if "conversations" in keys or "conversation" in keys:
            return (
                "This is the ShareGPT format: write messages with role and content instead of "
                "conversations with from and value; human is user, gpt is assistant."
            )
        if {"instruction", "output"} <= keys:
            return (
                "This is the Alpaca format: write prompt (instruction, and input below it) and completion "
                "(output)."
            )
        for ask, answer in (
            ("question", "answer"),
            ("input", "output"),
            ("prompt", "response"),
            ("query", "response"),
        ):
            if {ask, answer} <= keys:
                return f"Rename {ask} to prompt and {answer} to completion."
        if {"prompt", "chosen", "rejected"} <= keys:
            return "This is a preference dataset; supervised fine-tuning needs one answer: rename chosen to completion."
        for key in keys:
            near = nearest(key, ["messages", "prompt", "completion", "text"])
            if near and near != key:
                return f"Did you mean {near} instead of {key}?"
        return None

    def text(self, field: str, value: Any) -> str | None:
        """A string that UTF-8 can hold, or a fault."""
        if not isinstance(value, str):
            rule = "must not be null" if value is None else "must be a string"
            self.fault(field, rule, value, null=True)
            return None
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            self.fault(
                field,
                f"holds half of a surrogate pair at character {error.start + 1} (\\u{ord(value[error.start]):04x})",
                None,
                "The text was cut inside an emoji or decoded wrongly; write the whole character.",
            )
            return None
        if "\x00" in value:
            self.fault(field, f"holds a NUL character at {value.index(chr(0)) + 1}", None, "Remove it.")
            return None
        return value

    def rendered(self, field: str, text: str) -> None:
        start = text.lstrip()
        for mark in ("<bos>", "<|turn>", "<start_of_turn>", "<|im_start|>"):
            if start.startswith(mark):
                self.fault(
                    field,
                    f"is already rendered with a chat template (it starts with {mark}), which would be "
                    "encoded as text",
                    text,
                    "Give the conversation as messages; the model's own template is applied.",
                )
                return

    def side(self, key: str, role: str) -> list[dict[str, Any]]:
        value = self.value[key]
        if isinstance(value, list):
            return self.messages(key, value)
        text = self.text(key, value)
        if text is None:
            return []
        self.rendered(key, text)
        if key == "prompt" and not text.strip():
            self.fault(key, "must not be empty", text)
        return [{"role": role, "content": text}]

    def messages(self, field: str, value: Any) -> list[dict[str, Any]]:
        if isinstance(value, str):
            self.fault(
                field,
                "must be a list of messages, not a string",
                value,
                "It looks like JSON inside a string: parse it once more before writing the file."
                if value.lstrip()[:1] == "["
                else 'Write [{"role": "user", "content": ...}, ...].',
            )
            return []
        if not isinstance(value, list):
            self.fault(field, "must be a list of messages", value, null=True)
            return []
        if not value:
            self.fault(field, "must not be empty")
            return []
        if all(isinstance(item, list) for item in value):
            self.fault(field, "is a list of conversations", value, "Write one conversation a line.")
            return []
        found = [self.message(f"{field}[{i}]", item) for i, item in enumerate(value)]
        return [m for m in found if m is not None]

    def message(self, field: str, value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            self.fault(field, "must be an object with role and content", value, null=True)
            return None
        if "role" not in value:
            if "from" in value:
                fix = "This is the ShareGPT format: rename from to role and value to content; human is user, gpt is assistant."
                self.fault(field, "needs role and content, not from and value", list(value), fix)
            else:
                self.fault(f"{field}.role", "is required", None, f"One of {', '.join(ROLES)}.")
            return None
        role = value["role"]
        if role not in ROLES:
            known: str | None = _ALIASES.get(str(role).lower()) or nearest(str(role), ROLES)
            rename = f"Write {known}." if known else None
            self.fault(f"{field}.role", f"must be one of {', '.join(ROLES)}", role, rename, null=True)
            return None
        message: dict[str, Any] = {"role": role}
        calls = self.calls(f"{field}.tool_calls", value.get("tool_calls"), role)
        content = value.get("content")
        if content is None and (calls or value.get("tool_responses")):
            content = ""
        if "content" not in value and content is None:
            self.fault(f"{field}.content", "is required")
        elif role == "tool" and isinstance(content, dict):
            message["content"] = self.plain(f"{field}.content", content)
        else:
            message["content"] = self.content(f"{field}.content", content)
        if calls:
            message["tool_calls"] = calls
        weight = value.get("weight", 1)
        if weight != 1:
            self.fault(
                f"{field}.weight", "weights of single messages are not supported", weight,
                "Remove the field, or use dataset.lossOn: completion to train on the last answer only.", null=True,
            )  # fmt: skip
        for key in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            if value.get(key) is not None:
                message[key] = self.text(f"{field}.{key}", value[key]) or ""
        if value.get("tool_responses") is not None:
            message["tool_responses"] = self.plain(f"{field}.tool_responses", value["tool_responses"])
        return message

    def content(self, field: str, value: Any) -> Any:
        if not isinstance(value, list):
            fix = None
            if value is None:
                fix = 'Write the text, or "" where nothing was said; null would be rendered as the word None.'
            elif not isinstance(value, str):
                fix = "Write it as a JSON string."
            if isinstance(value, str):
                return self.text(field, value) or ""
            self.fault(field, "must be a string or a list of parts", value, fix, null=True)
            return ""
        parts = []
        for i, part in enumerate(value):
            place = f"{field}[{i}]"
            if isinstance(part, str):
                part = {"type": "text", "text": part}
            if not isinstance(part, dict) or "type" not in part:
                self.fault(place, 'must be a part such as {"type": "text", "text": ...}', part, null=True)
            elif part["type"] in _MEDIA:
                self.fault(
                    place, f"is of type {part['type']}; only text can be trained on here", None,
                    "Remove the row or its media.",
                )  # fmt: skip
            elif part["type"] not in ("text", "input_text", "output_text"):
                self.fault(f"{place}.type", "must be text", part["type"], null=True)
            else:
                found = self.text(f"{place}.text", part.get("text"))
                parts.append({"type": "text", "text": found or ""})
        return parts

    def plain(self, field: str, value: Any) -> Any:
        """JSON data that a template renders by itself: only its strings need checking."""
        if isinstance(value, str):
            return self.text(field, value) or ""
        if isinstance(value, dict):
            return {self.text(field, k) or "": self.plain(f"{field}.{k}", v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.plain(f"{field}[{i}]", v) for i, v in enumerate(value)]
        return value

    def parsed(self, field: str, value: Any, kind: type) -> Any:
        """Data, or data written as a JSON string (OpenAI writes arguments so, Parquet needs it)."""
        if isinstance(value, str):
            try:
                value = files.parse(value) if value.strip() else kind()
            except ValueError as error:
                self.fault(field, f"{error}", value)
                return None
        if not isinstance(value, kind):
            name = "an object" if kind is dict else "a list"
            self.fault(field, f"must be {name}", value, null=True)
            return None
        return self.plain(field, value)

    def calls(self, field: str, value: Any, role: str) -> list[dict[str, Any]]:
        if value is None or value == []:
            return []
        if role != "assistant":
            self.fault(field, "belongs to messages of the role assistant", role)
            return []
        found = []
        for i, call in enumerate(self.parsed(field, value, list) or []):
            place = f"{field}[{i}]"
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                self.fault(place, 'must be {"function": {"name": ..., "arguments": {...}}}', call, null=True)
                continue
            arguments = self.parsed(f"{place}.function.arguments", function.get("arguments", {}), dict)
            entry: dict[str, Any] = {
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments or {}},
            }
            if call.get("id") is not None:
                entry["id"] = call["id"]
            found.append(entry)
        return found

    def tools(self) -> list[dict[str, Any]]:
        value = self.value.get("tools")
        if value is None:
            return []
        found = self.parsed("tools", value, list) or []
        for i, tool in enumerate(found):
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                self.fault(
                    f"tools[{i}]",
                    'must be {"type": "function", "function": {"name": ..., ...}}',
                    tool,
                    null=True,
                )
        return found

    def order(self, messages: list[dict[str, Any]], field: str) -> None:
        """What must hold of the conversation as a whole; single faults first."""
        if self.faults or not messages:
            return
        roles = [m["role"] for m in messages]
        open_calls = False
        for i, message in enumerate(messages):
            if message["role"] == "tool" and not open_calls:
                self.fault(
                    f"{field}[{i}]", "a tool message must follow an assistant message with tool_calls", None,
                    "Give the call that it answers; templates drop an answer without one.",
                )  # fmt: skip
            if message["role"] != "tool":
                open_calls = bool(message.get("tool_calls"))
        if self.loss_on != "all":
            if "assistant" not in roles:
                self.fault(
                    field, "has no assistant message, so there is nothing to train on", roles,
                    "Add the answer, or set dataset.lossOn: all.",
                )  # fmt: skip
            elif roles[-1] != "assistant":
                self.fault(
                    f"{field}[{len(roles) - 1}]", f"the last message must be the assistant's, not the {roles[-1]}'s",
                    None, "Remove the messages after the last answer, or add the answer.",
                )  # fmt: skip
        for before, message in itertools.pairwise(messages):
            if before["role"] == message["role"] == "assistant" and not before.get("tool_calls"):
                self.notes.append("has two assistant messages in a row, which only some templates join")
                break
        if roles[0] == "assistant":
            self.notes.append("starts with an assistant message")
