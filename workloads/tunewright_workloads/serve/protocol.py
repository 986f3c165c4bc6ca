"""The OpenAI API as this engine speaks it: requests, their rules, and errors in OpenAI's shape.

A parameter that the engine cannot honour is refused by name, never ignored; one that changes
nothing in the answer (`user`, `metadata`, `store`, ...) is accepted.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tunewright_workloads.contract.configs import field_names, path_of
from tunewright_workloads.contract.faults import nearest


class ApiError(Exception):
    """A request that cannot be served, as the client will see it."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Model):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Common(_Model):
    """Fields that both endpoints share. Ranges are OpenAI's."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="vLLM's extension; 0 or -1: all")
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    ignore_eos: bool = Field(False, description="vLLM's extension: go on to max_tokens")
    min_tokens: Annotated[int, Field(ge=0)] = Field(0, description="vLLM's extension")
    return_token_ids: bool | None = Field(None, description="vLLM's extension")
    return_tokens_as_token_ids: bool | None = Field(None, description="vLLM's extension")
    # Accepted: nothing in the answer depends on them here.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > 4:
            raise ValueError("at most 4 stop strings")
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        return value

    @field_validator("n")
    @classmethod
    def _n(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("this engine generates one choice a request: n must be 1")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _bias(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not key.isdecimal():
                raise ValueError(f"keys are token ids, got {key!r}")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def _only(value: Any, *neutral: Any) -> Any:
    """Refuses what the engine cannot do, unless the value asks for nothing."""
    if value not in (None, *neutral):
        raise ValueError("is not supported by this engine")
    return value


class CompletionRequest(_Common):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = Field(True, description="vLLM's extension: <bos> before a string prompt")
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    _echo = field_validator("echo")(lambda value: _only(value, False))
    _best = field_validator("best_of")(lambda value: _only(value, 1))
    _suffix = field_validator("suffix")(lambda value: _only(value, ""))

    @field_validator("prompt")
    @classmethod
    def _prompt(cls, value: Any) -> Any:
        if value == [] or (isinstance(value, list) and any(part == [] for part in value)):
            raise ValueError("must not be empty")
        return value

    def prompts(self) -> list[str | list[int]]:
        """The prompts of the request, one generation each."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class Message(BaseModel):
    """One message. What the checkpoint's template knows beyond these goes through to it."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _content(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else []:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ValueError(
                    "only parts of type text can be read: the engine has no vision or audio tower"
                )
        return value

    @model_validator(mode="after")
    def _said(self) -> Self:
        # An assistant that only called tools said nothing; everybody else says something.
        if self.content is None and self.role != "assistant":
            raise ValueError(f"content is required of the role {self.role}")
        return self


class ChatRequest(_Common):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    reasoning_effort: Any = None

    _tools = field_validator("tools", "functions")(lambda value: _only(value, []))
    _choice = field_validator("tool_choice")(lambda value: _only(value, "none", "auto"))
    _format = field_validator("response_format")(lambda value: _only(value, {"type": "text"}))
    _modalities = field_validator("modalities")(lambda value: _only(value, ["text"]))
    _effort = field_validator("reasoning_effort")(lambda value: _only(value, "none"))


R = TypeVar("R", CompletionRequest, ChatRequest)


def _unpaired(value: Any, where: str = "") -> str | None:
    """The path of a string that no text can be: JSON can spell half a character, UTF-8 cannot."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return where
        return None
    if isinstance(value, list):
        pairs = [(item, f"{where}[{i}]") for i, item in enumerate(value)]
    elif isinstance(value, dict):
        pairs = [(item, f"{where}.{key}".lstrip(".")) for key, item in value.items()]
        pairs += [(key, where or "body") for key in value]
    else:
        return None
    return next((found for item, path in pairs if (found := _unpaired(item, path)) is not None), None)


def parse(kind: type[R], body: bytes) -> R:
    """A request from its bytes. Raises ApiError that names every faulty parameter."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError("The body must be a JSON object.")
    if (where := _unpaired(data)) is not None:
        raise ApiError(f"{where}: holds half of a surrogate pair, which is no character.", param=where)
    try:
        request = kind.model_validate(data)
    except ValidationError as error:
        raise _refusal(error, kind) from None
    if isinstance(request, ChatRequest) and request.top_logprobs is not None and not request.logprobs:
        raise ApiError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise ApiError("stream_options needs stream to be true.", param="stream_options")
    return request


def _refusal(error: ValidationError, kind: type[BaseModel]) -> ApiError:
    """pydantic's findings in one message; `param` is the first faulty parameter."""
    lines: dict[str, str] = {}
    code = None
    for item in error.errors(include_url=False):
        # Branches of a union are alternatives of one parameter: name it once.
        loc = item["loc"] if item["loc"][:1] not in (("prompt",), ("stop",)) else item["loc"][:1]
        if len(loc) > 3 and loc[0] == "messages" and loc[2] == "content":
            loc = loc[:3]
        place = path_of(loc)
        if item["type"] == "extra_forbidden":
            near = nearest(str(loc[-1]), field_names(kind, loc[:-1]))
            lines[place] = "unknown parameter" + (f", did you mean {near}?" if near else "")
            code = code or "unknown_parameter"
        elif item["type"] == "missing":
            lines[place] = "is required"
            code = code or "missing_required_parameter"
        elif place not in lines:
            message = item["msg"].removeprefix("Value error, ")
            if len(loc) < len(item["loc"]) and place == "prompt":
                message = "must be a string, a list of strings, a list of token ids, or a list of those"
            if len(loc) < len(item["loc"]) and place == "stop":
                message = "must be a string or a list of at most 4 strings"
            lines[place] = message[:1].lower() + message[1:]
    text = "; ".join(f"{place}: {message}" for place, message in lines.items())
    return ApiError(text + ".", param=next(iter(lines)), code=code)
