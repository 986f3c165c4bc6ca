"""The checkpoint's tokenizer and chat template, without transformers.

Two encoders stand behind it: one that knows the control tokens, and one that does not. Text from
users goes through the second, so that `<turn|>` inside a message stays five ordinary characters.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

from tunewright_workloads.contract.faults import Fault, UserError, show

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_MARKED = re.compile(r"^<[^<>\s]*\|[^<>\s]*>$")


@dataclass(frozen=True)
class Tokenizer:
    """What a checkpoint directory says about text. Made by `load`.

    control: the tokens that structure a conversation, by their text; never made from users' text.
    stop_ids: tokens after which generation ends, from generation_config.json.
    """

    directory: Path
    full: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer
    control: Mapping[str, int]
    bos_token: str
    eos_token: str
    pad_id: int
    stop_ids: frozenset[int]
    template: str | None
    template_vars: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bos_id(self) -> int:
        return self.control[self.bos_token]

    @property
    def eos_id(self) -> int:
        return self.control[self.eos_token]

    @property
    def turn_end_id(self) -> int:
        """`<turn|>`, which the model writes when its turn is over."""
        return self.token("<turn|>")

    def token(self, text: str) -> int:
        """The id of a control token. Raises UserError where the checkpoint has none of that text."""
        if text not in self.control:
            raise UserError(
                Fault(
                    str(self.directory / "tokenizer.json"),
                    f"has no control token {text}, so this is not a tokenizer of Gemma 4",
                    None,
                    "Use a Gemma 4 checkpoint.",
                )
            )
        return self.control[text]

    @property
    def size(self) -> int:
        return self.full.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, control: bool = True) -> list[int]:
        """Ids of a text; nothing is put before or after it. `control=False`: no control tokens."""
        encoder = self.full if control else self.plain
        return encoder.encode(text, add_special_tokens=False).ids

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts without control tokens, on all cores (TOKENIZERS_PARALLELISM)."""
        return [e.ids for e in self.plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.full.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Splits a text at its control tokens, longest first."""
        names = sorted(self.control, key=len, reverse=True)
        return re.compile("(" + "|".join(re.escape(n) for n in names) + ")")

    @cached_property
    def template_digest(self) -> str:
        return hashlib.sha256((self.template or "").encode()).hexdigest()

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if self.template is None:
            raise UserError(
                Fault(
                    str(self.directory),
                    "has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)",
                    None,
                    "Use an instruction-tuned checkpoint, or rows of the format text.",
                )
            )
        try:
            return _environment().from_string(self.template)
        except jinja2.TemplateError as error:
            raise UserError(
                Fault(str(self.directory), f"its chat template cannot be read: {error}")
            ) from None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """The conversation as the checkpoint's own template writes it, `<bos>` included.

        Raises UserError with what the template says when it refuses the conversation.
        """
        values = {
            **self.template_vars,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **options,
        }
        template = self._compiled  # a template that is no template is the checkpoint's fault, not a row's
        try:
            return template.render(values)
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            raise UserError(
                Fault("messages", f"the chat template cannot render them: {_first_line(error)}")
            ) from None


def load(directory: Path | str) -> Tokenizer:
    """Reads tokenizer.json, its configuration and the chat template of a checkpoint directory.

    Raises UserError for what is missing or cannot be read.
    """
    directory = Path(directory)
    path = directory / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            Fault(
                str(path),
                "does not exist",
                None,
                "A checkpoint directory in Hugging Face format has it; a tokenizer.model alone is not enough.",
            )
        ) from None
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    try:
        document = json.loads(text)
        full = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(Fault(str(path), f"is not a tokenizer: {_first_line(error)}")) from None
    config = _json(directory / "tokenizer_config.json")
    added = {t["content"]: t for t in document.get("added_tokens", [])}
    named = {n for key, value in config.items() if key.endswith("_token") and (n := _name(value))}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or {}
    named |= {n for value in (extra.values() if isinstance(extra, dict) else extra) if (n := _name(value))}
    control = {
        name: int(token["id"])
        for name, token in added.items()
        if token.get("special") or name in named or _MARKED.match(name)
    }
    bos, eos = _name(config.get("bos_token")) or "<bos>", _name(config.get("eos_token")) or "<eos>"
    for name in (bos, eos):
        if name not in control:
            raise UserError(Fault(str(path), f"has no token {name}, which tokenizer_config.json names"))
    pad = _name(config.get("pad_token")) or "<pad>"
    document["added_tokens"] = [t for t in document.get("added_tokens", []) if t["content"] not in control]
    document["post_processor"] = None
    plain = tokenizers.Tokenizer.from_str(json.dumps(document))
    for encoder in (full, plain):
        encoder.no_padding()
        encoder.no_truncation()
    variables = {key: _name(value) for key, value in config.items() if key.endswith("_token")}
    return Tokenizer(
        directory=directory,
        full=full,
        plain=plain,
        control=control,
        bos_token=bos,
        eos_token=eos,
        pad_id=control.get(pad, 0),
        stop_ids=_stops(directory)
        or frozenset(i for n in (eos, "<turn|>") if (i := control.get(n)) is not None),
        template=_template(directory, config),
        template_vars={**variables, "bos_token": bos, "eos_token": eos},
    )


def files(directory: Path) -> list[Path]:
    """The files that text depends on, those that exist."""
    return [directory / name for name in _FILES if (directory / name).is_file()]


def _name(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(Fault(str(path), f"cannot be read: {_first_line(error)}")) from None
    if not isinstance(data, dict):
        raise UserError(Fault(str(path), "must be a JSON object", show(data)))
    return data


def _stops(directory: Path) -> frozenset[int]:
    value = _json(directory / "generation_config.json").get("eos_token_id")
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = _json(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):  # several named ones
        found = next((t.get("template") for t in found if t.get("name") == "default"), None)
    return found if isinstance(found, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which some templates mark the model's part with; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for: a sandbox, trimmed blocks, loop controls."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    return environment


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
