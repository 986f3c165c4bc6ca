"""pydantic's JSON schema -> the structural OpenAPI v3 schema that a CRD takes.

pydantic walks the models; here its JSON schema is brought into Kubernetes' dialect: references
are put in place, `anyOf: [X, null]` becomes X (a null is pruned by the API server, as it is by
`Section`), exclusive bounds become OpenAPI 3.0's flags, and what a structural schema must not hold
is left out. Source of the rules: "Specifying a structural schema" in Kubernetes' documentation.
"""

from __future__ import annotations

from typing import Any

from tunewright_operator.api.base import Resource
from tunewright_operator.api.rules import CEL, PRESERVE

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    PRESERVE,
    CEL,
)

# pydantic names a bound by its own word where a validator stands before it.
_BOUNDS = {
    "minimum": ("minimum", False),
    "ge": ("minimum", False),
    "exclusiveMinimum": ("minimum", True),
    "gt": ("minimum", True),
    "maximum": ("maximum", False),
    "le": ("maximum", False),
    "exclusiveMaximum": ("maximum", True),
    "lt": ("maximum", True),
}


def structural(kind: type[Resource]) -> Schema:
    """The schema of one version of a CRD."""
    source = kind.model_json_schema(by_alias=True)
    parts = {
        name: _convert(part, source.get("$defs", {}), defaults=name == "spec")
        for name, part in source["properties"].items()
        if name in ("spec", "status")
    }
    root: Schema = {
        "description": source["description"],
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                # Both, or the API server puts unbounded ones in their place and calls rules about
                # the name too expensive.
                "properties": {
                    "name": {"type": "string", "maxLength": 253},
                    "generateName": {"type": "string", "maxLength": 253},
                },
            },
            "spec": parts["spec"],
            "status": parts["status"],
        },
    }
    if CEL in source:
        root[CEL] = source[CEL]
    return root


def _convert(node: Schema, definitions: dict[str, Schema], *, defaults: bool) -> Schema:
    """One node. `defaults`: keep them (the API server fills them in; in a status it must not, or
    what the operator wrote would differ from what it reads)."""
    node = _inlined(node, definitions)
    out: Schema = {}
    if "description" in node:
        out["description"] = " ".join(node["description"].split())
    if defaults and node.get("default") is not None:
        out["default"] = node["default"]
    if "const" in node:
        out["enum"] = [node["const"]]
    for key, (bound, exclusive) in _BOUNDS.items():
        if key in node:
            out[bound] = node[key]
            if exclusive:
                out["exclusive" + bound.capitalize()] = True
    out.update({key: node[key] for key in _KEPT if key in node})
    if out.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if out.get("type") == "integer":
        out["format"] = "int64"
    if "items" in node:
        out["items"] = _convert(node["items"], definitions, defaults=defaults)
    if "properties" in node:
        out["properties"] = {
            name: _convert(part, definitions, defaults=defaults) for name, part in node["properties"].items()
        }
        for name, part in out["properties"].items() if defaults else ():
            if name not in node.get("required", ()) and "default" not in part and "enum" not in part:
                # `image: null` is nothing at all. Of itself the API server prunes it when an object is
                # created, and refuses it in a server-side apply. To CEL it is absent either way. (An
                # enumeration cannot be nullable: the API server finds null in none.)
                part["nullable"] = True
    if out.get("default") == {} and "properties" in out:
        # The API server judges a default as it stands, before it fills in those below it.
        out["default"] = {n: p["default"] for n, p in out["properties"].items() if "default" in p}
    extra = node.get("additionalProperties")
    if isinstance(extra, dict) and extra:
        out["additionalProperties"] = _convert(extra, definitions, defaults=defaults)
    return out


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """The node with its reference and its optional in place; the node's own words win."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].rpartition("/")[2]]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
            continue
        branches = [b for b in node.get("anyOf", []) if b.get("type") != "null"]
        if len(branches) == 1:
            own = {key: value for key, value in node.items() if key != "anyOf"}
            node = {**branches[0], **own}
            continue
        return node
