"""Structured logs: one JSON object a line, with the resource that it is about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from tunewright_operator.reconcile.cache import Key

subject: ContextVar[Key | None] = ContextVar("subject", default=None)
"""What the running worker works on: every line it writes carries it, also those of libraries."""


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", "kind", "namespace", "name", "error"}`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        key = subject.get()
        ref = getattr(record, "k8s_ref", None)
        if key is not None:
            entry |= {"kind": key.kind, "namespace": key.namespace, "name": key.name}
        elif isinstance(ref, dict):
            entry |= {k: ref[k] for k in ("kind", "namespace", "name") if ref.get(k)}
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Sends everything to stderr as JSON lines. Kopf's own lines below warnings are left out."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
