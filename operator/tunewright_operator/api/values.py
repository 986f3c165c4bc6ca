"""The scalar types of the resources: names, URIs, durations, quantities.

Each has a length bound, without which the API server must assume megabytes and refuses the rules
as too expensive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from tunewright_operator.api.rules import Rule, Rules, pattern
from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import nearest


def _whole(value: Any) -> Any:
    # kubectl turns 100.0 into JSON's 100 before the API server sees it.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


Int = Annotated[int, BeforeValidator(_whole)]

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"

Name = Annotated[
    str,
    Field(min_length=1, max_length=253),
    pattern(
        "name",
        "must be a Kubernetes name: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
        SUBDOMAIN,
    ),
]
"""The name of another object in the same namespace."""

Key = Annotated[
    str,
    Field(min_length=1, max_length=253),
    pattern(
        "key", "must be a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'", "[-._a-zA-Z0-9]+"
    ),
]

Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    pattern("revision", "must be a branch, a tag or a commit of the source", "[A-Za-z0-9][A-Za-z0-9._/-]*"),
]

ServedName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    pattern(
        "served-name",
        "must be letters, digits, '.', '_', '-', ':' and '/', beginning and ending with a letter or digit",
        "[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?",
    ),
]
"""The `model` that clients of the OpenAI API send."""

# -- durations ---------------------------------------------------------------------------------

_DURATION = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?", re.ASCII)
_DURATION_CEL = "^([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$"


def seconds(text: str) -> int:
    """'1h30m' -> 5400. Raises ValueError for what is no duration."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"no duration: {text!r}")
    hours, minutes, secs = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + secs


def _is_duration(text: str) -> bool:
    try:
        return 60 <= seconds(text) <= 365 * 86400
    except ValueError:
        return False


Duration = Annotated[
    str,
    Field(min_length=2, max_length=24),
    Rule(
        "duration",
        "must be a duration from 1m to 8760h in hours, minutes and seconds, in this order",
        _is_duration,
        f"self.matches(r'{_DURATION_CEL}') && self.size() > 1 && "
        "duration(self) >= duration('1m') && duration(self) <= duration('8760h')",
        fix="Examples: 12h, 90m, 1h30m",
    ),
]

# -- quantities --------------------------------------------------------------------------------

_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)


def _is_quantity(value: int | str) -> bool:
    if isinstance(value, int):
        return value >= 0
    return len(value) <= 32 and _QUANTITY.fullmatch(value) is not None


Quantity = Annotated[
    Int | str,
    Rule(
        "quantity",
        "must be a quantity of Kubernetes, not negative",
        _is_quantity,
        f"type(self) == int ? self >= 0 : (type(self) == string && self.matches(r'^{_QUANTITY.pattern}$'))",
        fix="Examples: 2, 500m, 16Gi",
    ),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "maxLength": 32}),
]

# -- URIs --------------------------------------------------------------------------------------

_BUCKET = "[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"
_REPO = r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"


def _when(scheme: str, regex: str) -> tuple[Callable[[str], bool], str]:
    """Both judges of "if it begins with scheme://, the whole matches"."""
    compiled = re.compile(f"{scheme}://{regex}", re.ASCII | re.DOTALL)
    return (
        lambda v: not v.startswith(f"{scheme}://") or compiled.fullmatch(v) is not None,
        f"!self.startsWith('{scheme}://') || self.matches(r'^{scheme}://{regex}$')",
    )


def _uri_rules(schemes: tuple[str, ...], what: str, *, writable: bool) -> tuple[Rule, ...]:
    forms = ", ".join(f"{s}://" for s in schemes)
    alternatives = "|".join(schemes)
    starts = re.compile(f"({alternatives})://")
    path = "/.*[^/].*" if writable else "(/.*)?"
    gs, gs_cel = _when("gs", _BUCKET + path)
    hf, hf_cel = _when("hf", _REPO + "(/.*)?")
    pvc, pvc_cel = _when("pvc", SUBDOMAIN + "/.*[^/].*")
    file, file_cel = _when("file", "/.*[^/].*")
    sample, sample_cel = _when("sample", SUBDOMAIN)
    dots = re.compile(r"/\.{1,2}(/|$)")
    below = " and a path below it" if writable else ""
    kind = "write" if writable else "read"
    characters = Rule(
        f"{kind}-characters",
        "must not hold spaces (but in file://), control characters, or '.' and '..' as a part of the path",
        lambda v: (
            not dots.search(v)
            and not re.search(r"[\x00-\x1f\x7f]", v)
            and (" " not in v or v.startswith("file://"))
        ),
        r"!self.matches(r'/\.{1,2}(/|$)') && !self.matches(r'[\x00-\x1f\x7f]') && "
        "(self.startsWith('file://') || !self.contains(' '))",
    )
    rules = (
        Rule(
            f"{kind}-scheme",
            f"must be a URI to {what}: {forms}",
            lambda v: starts.match(v) is not None,
            f"self.matches(r'^({alternatives})://')",
            hint=_scheme_hint,
        ),
        Rule(f"{kind}-gs", f"needs a bucket{below}", gs, gs_cel, fix="Write gs://bucket/path"),
        Rule(
            f"{kind}-pvc",
            "needs a PersistentVolumeClaim and a path below it",
            pvc,
            pvc_cel,
            fix="Write pvc://claim/path",
        ),
        Rule(
            f"{kind}-file",
            "needs an absolute path",
            file,
            file_cel,
            fix="Write file:///absolute/path; only `tunewright run` and `plan --local` take file://./relative",
        ),
    )
    if writable:
        return (*rules, characters)
    return (
        *rules,
        Rule("read-hf", "needs a repository", hf, hf_cel, fix="Write hf://organization/name"),
        Rule(
            "read-sample", "needs the name of a shipped sample", sample, sample_cel, fix="Write sample://faq"
        ),
        characters,
    )


def _scheme_hint(value: str) -> str | None:
    scheme, found, _ = value.partition("://")
    if found:
        near = nearest(scheme, uris.SCHEMES)
        return f"Did you mean {near}://?" if near and near != scheme else None
    if value.startswith(("/", ".", "~")) or "/" in value or value.endswith((".jsonl", ".json", ".parquet")):
        path = value if value.startswith("/") else "./" + value.removeprefix("./")
        return f"A file of this machine is file://{path}, for `tunewright run` and `plan --local`; a cluster needs gs:// or pvc://"
    return None


ReadUri = Annotated[
    str, Field(min_length=1, max_length=1024), Rules(_uri_rules(uris.SCHEMES, "read from", writable=False))
]
WriteUri = Annotated[
    str, Field(min_length=1, max_length=1024), Rules(_uri_rules(uris.WRITABLE, "write to", writable=True))
]
