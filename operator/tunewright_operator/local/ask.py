"""One question to an OpenAI-compatible endpoint, with the standard library."""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request

from tunewright_operator.local.runner import Endpoint


class AskError(Exception):
    """The endpoint did not answer as the API says."""


def body(endpoint: Endpoint, question: str, max_tokens: int) -> dict[str, object]:
    """A greedy chat request."""
    return {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def ask(endpoint: Endpoint, question: str, *, max_tokens: int = 128, timeout: float = 300) -> str:
    """The model's answer. Raises AskError with what the endpoint said."""
    request = urllib.request.Request(
        f"{endpoint.url}/v1/chat/completions",
        json.dumps(body(endpoint, question, max_tokens)).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        raise AskError(f"{endpoint.url} answered {error.code}: {_message(error.read())}") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise AskError(f"{endpoint.url} did not answer: {error}") from None
    return str(text or "")


def curl(endpoint: Endpoint, question: str = "What is Tunewright?") -> str:
    """The same request as a line for the shell."""
    data = shlex.quote(json.dumps(body(endpoint, question, 128), ensure_ascii=False))
    return f"curl -s {endpoint.url}/v1/chat/completions -H 'Content-Type: application/json' -d {data}"


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode("utf-8", errors="replace")
