"""YAML as people write it, read as kubectl reads it, with the place of every fault.

kubectl reads YAML 1.1: `no` is false, `010` is eight. What changes a value silently is a fault
here, with the line. Where PyYAML differs from kubectl (1e-4 as a string, dates as dates, 1:30 in
base sixty), kubectl's reading is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tunewright_workloads.contract.faults import Fault, UserError, show

_MAX_BYTES = 1_048_576
_MAX_VALUES = 100_000
"""Values after anchors are expanded: nine aliases in nine levels are a billion."""

_BOOLEAN = "tag:yaml.org,2002:bool"
_WORDS = re.compile(r"^(?:y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF)$")
_OCTAL = re.compile(r"^[-+]?0[0-9_]+$")

_FLOAT = (
    r"^(?:[-+]?(?:[0-9][0-9_]*)?\.?[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*\.(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with kubectl's idea of what a plain scalar is."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _regex, _first in (
    (
        _BOOLEAN,
        r"^(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$",
        "yYnNtTfFoO",
    ),
    (
        "tag:yaml.org,2002:int",
        r"^[-+]?(?:0b[0-1_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$",
        "-+0123456789",
    ),
    (
        "tag:yaml.org,2002:float",
        _FLOAT,
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("tag:yaml.org,2002:merge", r"^(?:<<)$", "<"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_regex), [*_first, ""] if "\0" in _first else list(_first))


def _boolean(loader: _Loader, node: Any) -> bool:
    return str(loader.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


def _integer(loader: _Loader, node: Any) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-")
    base = {"0b": 2, "0x": 16, "0o": 8}.get(text[:2].lower())
    if base is None and len(text) > 1 and text.startswith("0"):
        return sign * int(text, 8)
    return sign * int(text, base or 10)


def _float(loader: _Loader, node: Any) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor(_BOOLEAN, _boolean)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


@dataclass(frozen=True)
class Document:
    """One document: its data, and the node tree for what the text said at a place."""

    data: Any
    node: Node

    def text_at(self, loc: tuple[int | str, ...]) -> str | None:
        """The plain scalar at a path as it was written, or None."""
        current: Node | None = self.node
        for part in loc:
            if isinstance(current, MappingNode):
                found = [v for k, v in current.value if isinstance(k, ScalarNode) and k.value == part]
                current = found[-1] if found else None
            elif isinstance(current, SequenceNode) and isinstance(part, int) and part < len(current.value):
                current = current.value[part]
            else:
                return None
        return current.value if isinstance(current, ScalarNode) and current.style is None else None


def word(text: str | None) -> str | None:
    """A fix, where the text is a word or a number that YAML does not read as text."""
    if text is None:
        return None
    if _WORDS.match(text):
        return f'YAML reads {text} as true or false: write "{text}" in quotes'
    return f'Write "{text}" in quotes'


def printable(text: str) -> str:
    """A user's key as it can stand in a message of one line."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 200 else shown[:199] + "…"


def read(text: str, place: str) -> list[Document]:
    """The documents of a text; empty ones are left out. Raises UserError with every fault."""
    if len(text) > _MAX_BYTES:
        raise UserError(Fault(place, "is too large: a resource has at most 1 MiB", f"{len(text)} characters"))
    try:
        loader = _Loader(_without_tabs(text))
    except yaml.reader.ReaderError as error:
        problem = f"is not text in UTF-8 ({error.reason} at position {error.position})"
        raise UserError(Fault(place, problem)) from None
    documents: list[Document] = []
    faults: list[Fault] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            found = list(_check(node, place))
            faults += found
            if not found and not _is_null(node):
                documents.append(Document(loader.construct_document(node), node))
    except yaml.MarkedYAMLError as error:
        faults.append(_syntax(error, place))
    except (ValueError, RecursionError) as error:
        faults.append(Fault(place, f"cannot be read: {error}"))
    finally:
        loader.dispose()
    if faults:
        raise UserError(faults)
    return documents


def _without_tabs(text: str) -> str:
    """JSON may be indented with tabs, which YAML forbids; in JSON they stand nowhere but between tokens."""
    if text.lstrip().startswith("{") and "\t" in text:
        try:
            json.loads(text)
        except ValueError:
            return text
        return text.replace("\t", " ")
    return text


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _syntax(error: yaml.MarkedYAMLError, place: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
    problem = error.problem or error.context or "cannot be read"
    fix = None
    if "\\t" in problem or "found character '\t'" in problem:
        fix = "Indent with spaces"
    elif "mapping values are not allowed" in problem:
        fix = "Quote a value that holds ': ', and check the indentation"
    return Fault(where, f"is not YAML: {problem}", None, fix)


def _check(root: Node, place: str) -> Iterator[Fault]:
    """Duplicate keys, keys that are no text, octal numbers, foreign tags, anchors that explode."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    faults: list[Fault] = []

    def at(node: Node) -> str:
        return f"{place}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def size(node: Node, depth: int) -> int:
        if id(node) in open_nodes:
            faults.append(Fault(at(node), "an anchor must not hold itself"))
            return 1
        if id(node) in sizes:
            return sizes[id(node)]
        if depth > 100:
            faults.append(Fault(at(node), "is nested too deeply: at most 100 levels"))
            sizes[id(node)] = 1
            return 1
        open_nodes.add(id(node))
        total = 1
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            faults.append(Fault(at(node), "tags are not allowed", show(node.tag), "Remove the tag"))
        if isinstance(node, ScalarNode):
            if node.style is None and node.tag.endswith(":int") and _OCTAL.match(node.value):
                faults.append(
                    Fault(
                        at(node),
                        "a number must not begin with 0: YAML reads it in base eight",
                        node.value,
                        f'Write {node.value.lstrip("+-0_") or "0"}, or "{node.value}" in quotes for text',
                    )
                )
        elif isinstance(node, MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                if not isinstance(key, ScalarNode):
                    faults.append(Fault(at(key), "a key must be text"))
                elif key.tag.endswith(":merge"):
                    pass
                elif key.tag != "tag:yaml.org,2002:str":
                    faults.append(Fault(at(key), "a key must be text", show(key.value), word(key.value)))
                elif key.value in seen:
                    faults.append(
                        Fault(
                            at(key),
                            f"the key {printable(key.value)} stands twice",
                            None,
                            f"The first is in line {seen[key.value]}: keep one",
                        )
                    )
                else:
                    seen[key.value] = key.start_mark.line + 1
                total += size(key, depth + 1) + size(value, depth + 1)
        elif isinstance(node, SequenceNode):
            total += sum(size(item, depth + 1) for item in node.value)
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    if size(root, 0) > _MAX_VALUES:
        faults.append(Fault(place, f"expands to more than {_MAX_VALUES} values", None, "Use fewer anchors"))
    yield from faults
