"""From text or plain data to resources: every fault at once, each with its place.

    quickstart.yaml: FineTuneJob/support-bot: spec.training.epochs: cannot stand beside steps (got 1). ...

Type faults and broken rules are shown together: what pydantic refuses is cut out (or, where it is
required, stood in for by the field's example), and the rest is read again and asked for its rules.
A rule that reads a part that was cut out is not asked.
"""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tunewright_operator.api import documents
from tunewright_operator.api.base import Resource, choices, judge, model_in, sections
from tunewright_operator.api.documents import printable
from tunewright_operator.api.endpoint import ServeEndpoint
from tunewright_operator.api.job import FineTuneJob
from tunewright_operator.api.metadata import GROUP, GROUP_VERSION
from tunewright_workloads.contract.configs import path_of
from tunewright_workloads.contract.faults import Fault, UserError, nearest, show

KINDS: dict[str, type[FineTuneJob] | type[ServeEndpoint]] = {
    "FineTuneJob": FineTuneJob,
    "ServeEndpoint": ServeEndpoint,
}
CLAIM = "PersistentVolumeClaim"

R = TypeVar("R", bound=Resource)
Loc = tuple[int | str, ...]


class Resources(list["FineTuneJob | ServeEndpoint"]):
    """What `load` found, in the order of the file. `claims` are the PersistentVolumeClaims beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[dict[str, Any]] = []


def load(source: str | Path, *, base: str | Path | None = None, name: str | None = None) -> Resources:
    """Reads resources from a file or from YAML text, and checks all of them.

    source: a Path, or a str: text when it holds a line break or `: `, else a path; `-` is stdin.
    base:   the folder that `file://./data.jsonl` is relative to. Giving it says that this machine
            runs the resources; without it the rules of a cluster hold too (nothing relative, no
            output to a container's own disk).
    name:   how the source is called in messages; default the file's name.
    Raises UserError with every fault of every document.
    """
    text, called = _text(source)
    called = name or called
    found = Resources()
    faults: list[Fault] = []
    pending = documents.read(text, called)
    if not pending:
        raise UserError(Fault(called, "holds no resource", None, f"Write a {' or a '.join(KINDS)}"))
    for index, document in enumerate(pending):
        items: list[tuple[Any, str, Loc]] = [(document.data, "", ())]
        if isinstance(document.data, dict) and document.data.get("kind") == "List":
            listed = document.data.get("items")
            if not isinstance(listed, list) or not listed:
                faults.append(Fault(f"{called}: items", "must be a list of resources", show(listed)))
                continue
            items = [(item, f"items[{i}]: ", ("items", i)) for i, item in enumerate(listed)]
        for data, where, loc in items:
            try:
                _read(data, called, where, index, len(pending), base, found, document, loc)
            except UserError as error:
                faults += error.faults
    if not faults:
        faults = _between(found, called)
    if faults:
        raise UserError(faults)
    return found


def _text(source: str | Path) -> tuple[str, str]:
    if isinstance(source, str) and source == "-":
        return sys.stdin.read(), "stdin"
    if isinstance(source, str) and ("\n" in source or ": " in source or not source.strip()):
        return source, "(text)"
    path = Path(source)
    try:
        return path.read_bytes().decode("utf-8-sig"), path.name
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror or error}")) from None
    except UnicodeDecodeError as error:
        raise UserError(Fault(str(path), f"is not text in UTF-8 (byte {error.start})")) from None
    except ValueError as error:
        raise UserError(Fault(show(str(path)), f"is not a path: {error}")) from None


def _read(
    data: Any,
    called: str,
    where: str,
    index: int,
    count: int,
    base: str | Path | None,
    found: Resources,
    document: documents.Document,
    loc: Loc,
) -> None:
    prefix = f"{called}: {where}" if count == 1 or where else f"{called}: document {index + 1}: "
    if not isinstance(data, dict):
        raise UserError(
            Fault(prefix.rstrip(": "), "must be a mapping with apiVersion, kind, metadata and spec")
        )
    kind, version = data.get("kind"), data.get("apiVersion")
    metadata = data.get("metadata")
    label = metadata.get("name") if isinstance(metadata, dict) else None
    if kind == CLAIM and version == "v1":
        if not isinstance(label, str) or not label:
            raise UserError(Fault(f"{prefix}{CLAIM}: metadata.name", "is required"))
        found.claims.append(data)
        return
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(_unknown_kind(prefix, data))
    prefix = f"{called}: {kind}/{label if _is_label(label) else index + 1}: "
    if version != GROUP_VERSION:
        fix = f"Write apiVersion: {GROUP_VERSION}"
        if isinstance(version, str) and version.startswith(f"{GROUP}/"):
            fix = f"This release knows {GROUP_VERSION}"
        raise UserError(Fault(f"{prefix}apiVersion", f"must be {GROUP_VERSION}", show(version), fix))
    data = {key: value for key, value in data.items() if key != "status"}  # as the API server does
    if base is not None:
        data = _absolute(data, Path(base))
    resource = parse(KINDS[kind], data, prefix, document=document, loc=loc, cluster=base is None)
    same = [r for r in found if r.kind == resource.kind and _identity(r) == _identity(resource)]
    if same:
        raise UserError(
            Fault(prefix.rstrip(": "), "stands twice", None, "Give each resource a name of its own")
        )
    found.append(resource)


def _is_label(label: Any) -> bool:
    return isinstance(label, str) and re.fullmatch(r"[\w.-]{1,253}", label) is not None


def _identity(resource: FineTuneJob | ServeEndpoint) -> tuple[str | None, str]:
    return resource.metadata.namespace, resource.metadata.name


def _unknown_kind(prefix: str, data: dict[str, Any]) -> Fault:
    kind = data.get("kind")
    place = f"{prefix}kind"
    if kind is None:
        return Fault(place, "is required", None, f"One of {', '.join(KINDS)}")
    near = nearest(str(kind), list(KINDS))
    fix = f"Did you mean {near}?" if near else f"Beside them a file may hold {CLAIM} (v1)"
    return Fault(place, f"must be {' or '.join(KINDS)}", show(kind), fix)


def _between(found: Resources, called: str) -> list[Fault]:
    """Rules between resources of one file."""
    jobs = {_identity(r): r for r in found if isinstance(r, FineTuneJob)}
    faults = []
    for endpoint in found:
        if not isinstance(endpoint, ServeEndpoint) or endpoint.spec.model.fine_tune_job_ref is None:
            continue
        wanted = endpoint.spec.model.fine_tune_job_ref.name
        job = jobs.get((endpoint.metadata.namespace, wanted))
        if job is not None and not job.spec.output.merge:
            faults.append(
                Fault(
                    f"{called}: ServeEndpoint/{endpoint.metadata.name}: spec.model.fineTuneJobRef.name",
                    "must be a job that merges: an endpoint serves merged weights",
                    show(wanted),
                    f"Set spec.output.merge to true in FineTuneJob/{wanted}",
                )
            )
    return faults


# -- local paths -----------------------------------------------------------------------------------

_LOCAL = (
    ("model", "source"),
    ("model", "uri"),
    ("output", "uri"),
    ("dataset", "train"),
    ("dataset", "validation"),
)


def _absolute(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """`file://./x` and `file://x` below `base`, in every field that holds a URI."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return data
    data = copy.deepcopy(data)
    for part, key in _LOCAL:
        holder = data["spec"].get(part)
        if not isinstance(holder, dict):
            continue
        value = holder.get(key)
        if isinstance(value, str):
            holder[key] = _resolve(value, base)
        elif isinstance(value, list):
            holder[key] = [_resolve(v, base) if isinstance(v, str) else v for v in value]
    return data


def _resolve(uri: str, base: Path) -> str:
    rest = uri.removeprefix("file://")
    if rest == uri or rest.startswith("/") or not rest or "\x00" in rest:
        return uri
    return f"file://{(base.absolute() / rest).resolve()}"


# -- plain data ------------------------------------------------------------------------------------


def parse(
    kind: type[R],
    data: Any,
    prefix: str = "",
    *,
    document: documents.Document | None = None,
    loc: Loc = (),
    cluster: bool = False,
    newer: bool = False,
) -> R:
    """A resource from plain data, as the API server returns it. Raises UserError with every fault.

    cluster: also ask the rules that hold only where pods run.
    newer: the data may come from CRDs newer than these models, whose API server fills in defaults of
    fields that nobody asked for: unknown fields are passed over, as any client of an API does.
    """
    if newer:
        data = _familiar(kind, data)
    first, errors = _validate(kind, data)
    faults = _type_faults(errors, kind, prefix, document, loc)
    broken = [path_of(error["loc"]) for error in errors]
    resource, attempt = first, data
    for _ in range(8):  # each round cuts out what the one before it had hidden
        if resource is not None or not errors:
            break
        attempt = _mend(attempt, errors, kind)
        resource, errors = _validate(kind, attempt)
        for error in errors:
            place = path_of(error["loc"])
            if not any(_touches(place, b) for b in broken):
                faults += _type_faults([error], kind, prefix, document, loc)
            broken.append(place)
    if resource is not None:
        for finding in judge(resource).items:
            if finding.cluster and not cluster:
                continue
            if any(_touches(read, b) for read in finding.reads for b in broken):
                continue
            faults.append(replace(finding.fault, place=prefix + finding.fault.place))
    if faults:
        raise UserError(faults)
    assert first is not None
    return first


def _familiar(kind: type[R], data: Any) -> Any:
    """The data without the fields that the models do not have."""
    unknown = [e["loc"] for e in _validate(kind, data)[1] if e["type"] == "extra_forbidden"]
    if not unknown:
        return data
    data = copy.deepcopy(data)
    for *parents, last in unknown:
        inner = data
        for part in parents:
            inner = inner[part]
        inner.pop(last, None)
    return data


def _validate(kind: type[R], data: Any) -> tuple[R | None, list[Any]]:
    try:
        # Files use the aliases alone: a snake_case key would be unknown to the API server.
        return kind.model_validate(data, by_alias=True, by_name=False, context={"defer": True}), []
    except ValidationError as error:
        found = [e for e in error.errors(include_url=False) if e["type"] != "default_factory_not_called"]
        return None, found


def _touches(a: str, b: str) -> bool:
    """Whether one place is the other, or lies in it."""
    return a == b or _below(a, b) or _below(b, a)


def _below(inner: str, outer: str) -> bool:
    return inner.startswith(outer) and inner[len(outer) :][:1] in (".", "[")


def _mend(data: Any, errors: list[Any], kind: type[BaseModel]) -> Any:
    """A copy without what is at fault, and with examples for what is missing."""
    data = copy.deepcopy(data)
    for error in sorted(errors, key=lambda e: [str(part) for part in e["loc"]], reverse=True):
        if not error["loc"]:
            continue
        *path, last = error["loc"]
        holder: Any = data
        try:
            for part in path:
                holder = holder[part]
            info = _field(kind, error["loc"])
            if info is not None and info.is_required() and info.examples:
                holder[last] = copy.deepcopy(info.examples[0])
            elif isinstance(holder, list):
                if len(holder) > 1:
                    del holder[last]
                else:
                    _put_example(data, path, kind)
            else:
                holder.pop(last, None)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return data


def _put_example(data: Any, path: list[Any], kind: type[BaseModel]) -> None:
    info = _field(kind, tuple(path))
    holder = data
    for part in path[:-1]:
        holder = holder[part]
    if info is not None and info.examples:
        holder[path[-1]] = copy.deepcopy(info.examples[0])
    else:
        holder.pop(path[-1], None)


def _field(kind: type[BaseModel], loc: Loc) -> FieldInfo | None:
    """The field that a location ends at, or None (for items, keys of maps, unknown names)."""
    current: type[BaseModel] | None = kind
    info: FieldInfo | None = None
    for part in loc:
        if isinstance(part, int):
            info = None
            continue
        if current is None:
            return None
        for name, candidate in current.model_fields.items():
            if part == (candidate.alias or name):
                info, current = candidate, model_in(candidate.annotation)
                break
        else:
            return None
    return info


def _model_at(kind: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    if not loc:
        return kind
    names = tuple(part for part in loc if not isinstance(part, int))
    info = _field(kind, names)
    return model_in(info.annotation) if info is not None else None


_LIMITS = {
    "greater_than": ("gt", "must be greater than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "too_short": ("min_length", "must have at least {} items"),
    "too_long": ("max_length", "must have at most {} items"),
}

_TYPES = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "finite_number": "must be a finite number",
}


def _type_faults(
    errors: list[Any],
    kind: type[BaseModel],
    prefix: str,
    document: documents.Document | None,
    loc: Loc,
) -> list[Fault]:
    faults: list[Fault] = []
    for error in _merged(errors):
        at: Loc = error["loc"]
        place = prefix + printable(path_of(at))
        cause = error.get("ctx", {}).get("error")
        context = error.get("ctx", {})
        value = error["input"]
        shown = None if isinstance(value, (dict, BaseModel)) else show(value)
        code = error["type"]
        if isinstance(cause, UserError):
            faults += [replace(fault, place=place) for fault in cause.faults]
        elif code == "extra_forbidden":
            faults.append(Fault(place, "is not a field", None, _known(kind, at)))
        elif code == "missing":
            info = _field(kind, at)
            fix = f"Example: {_sample(info)}" if info is not None and info.examples else None
            faults.append(Fault(place, "is required", None, fix))
        elif code == "literal_error":
            info = _field(kind, tuple(p for p in at if not isinstance(p, int)))
            known = [str(c) for c in choices(info)] if info is not None else []
            near = nearest(value, known) if isinstance(value, str) else None
            fix = f"Did you mean {near}?" if near else None
            if isinstance(value, bool) and document is not None:
                fix = documents.word(document.text_at(loc + at)) or fix
            rule = (
                f"must be one of {', '.join(known)}"
                if len(known) > 1
                else f"must be {known[0] if known else '?'}"
            )
            faults.append(Fault(place, rule, shown, fix))
        elif code in _LIMITS:
            key, text = _LIMITS[code]
            one = isinstance(value, (str, list, dict)) and context[key] == 1
            faults.append(Fault(place, text.format(context[key]).removesuffix("s" if one else ""), shown))
        elif code in _TYPES:
            fix = None
            info = _field(kind, at)
            if info is not None and info.examples and not isinstance(value, (dict, list)):
                fix = f"Example: {_sample(info)}"
            elif code == "string_type" and isinstance(value, (bool, int, float)) and document is not None:
                fix = documents.word(document.text_at(loc + at))
            elif isinstance(value, str) and code in ("int_type", "float_type", "bool_type"):
                fix = "Write it without quotes" if _plain(value, code) else None
            elif code == "list_type" and isinstance(value, str):
                fix = f"Write [{value}]"
            elif code in ("model_type", "model_attributes_type"):
                model = _model_at(kind, at)
                fix = "With " + ", ".join(_names(model)) if model is not None else None
            faults.append(Fault(place, _TYPES[code], shown, fix))
        else:
            message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            faults.append(Fault(place, message[:1].lower() + message[1:], shown))
    return faults


def _sample(info: FieldInfo) -> str:
    """The field's example on one line of YAML."""
    assert info.examples
    text = yaml.safe_dump(info.examples[0], default_flow_style=True, width=10_000, sort_keys=False)
    return str(text).removesuffix("\n...\n").strip()


def _merged(errors: list[Any]) -> list[Any]:
    """Without the branches of int-or-string: ('memory', 'int') and ('memory', 'str') are one fault."""
    kept: dict[tuple[Any, ...], Any] = {}
    for error in errors:
        at = error["loc"]
        if "resources" in at and len(at) > at.index("resources") + 3:
            at = at[:-1]
            error = {**error, "loc": at, "type": "quantity", "msg": "must be text or a whole number"}
        kept.setdefault((at, error["type"]), error)
    return list(kept.values())


def _plain(value: str, code: str) -> bool:
    if code == "bool_type":
        return value in ("true", "false")
    try:
        float(value)
    except ValueError:
        return False
    return True


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _known(kind: type[BaseModel], at: Loc) -> str:
    model = _model_at(kind, at[:-1])
    names = _names(model) if model is not None else []
    near = nearest(str(at[-1]), names)
    if near:
        return f"Did you mean {near}?"
    for place, part in sections(kind):
        if place.startswith("spec") and "[]" not in place and at[-1] in _names(part):
            return f"It belongs at {place}.{at[-1]}"
    return f"The fields here are {', '.join(names)}" if names and len(names) < 12 else "Remove it"
