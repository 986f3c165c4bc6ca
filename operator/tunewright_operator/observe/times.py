"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def parse(text: str) -> datetime:
    """RFC 3339, UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def show(moment: datetime) -> str:
    """Seconds, UTC: `2026-12-01T08:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def between(start: str | datetime, end: str | datetime) -> float:
    """Seconds from start to end, never negative: clocks of two machines differ."""
    first = parse(start) if isinstance(start, str) else start
    last = parse(end) if isinstance(end, str) else end
    return max(0.0, (last - first).total_seconds())


def human(seconds: float) -> str:
    """`3h 20m`, `45s`: two units at most."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [f"{n}{unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (secs, "s")) if n]
    return " ".join(parts[:2]) or "0s"
