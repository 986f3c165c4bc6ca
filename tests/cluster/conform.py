"""kubeconform, with schemas that come from the API server and from CRDs, never from the network.

The API server publishes an OpenAPI document for each group that it serves; of a CRD the schema stands in
the CRD itself. Both become JSON schemas that know no field besides those named, so that a misspelt one
is found.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from . import build
from .api import Cluster, Object

_LOCATION = "{{ .Group }}_{{ .ResourceAPIVersion }}_{{ .ResourceKind }}.json"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REF = "#/components/schemas/"


class ConformError(Exception):
    """What kubeconform found, one line a fault."""


def write_builtin(cluster: Cluster, folder: Path) -> None:
    """The schemas of every kind that the API server has built in."""
    roots = cluster.request("GET", "/openapi/v3")["paths"]
    for name in sorted(roots):
        if not name.startswith(("api/", "apis/")) or name.count("/") != (1 if name == "api/v1" else 2):
            continue
        known = cluster.request("GET", roots[name]["serverRelativeURL"]).get("components", {})
        schemas = known.get("schemas", {})
        for one, schema in schemas.items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                version = "/".join(part for part in (kind["group"], kind["version"]) if part)
                if version == name.partition("/")[2]:
                    _write(folder, version, kind["kind"], {"$ref": _REF + one}, schemas)


def write_crds(cluster: Cluster, folder: Path, paths: Iterable[Path]) -> None:
    """The schemas of the custom resources in these files, with the metadata of every other kind."""
    core = cluster.request("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    for path in paths:
        for crd in yaml.safe_load_all(path.read_text()):
            if not crd or crd["kind"] != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = dict(version["schema"]["openAPIV3Schema"])
                plain = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
                meta = {"metadata": {"$ref": _REF + _META}}
                schema["properties"] = {**schema["properties"], **plain, **meta}
                _write(folder, f"{spec['group']}/{version['name']}", spec["names"]["kind"], schema, core)


def check(folder: Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Validates objects strictly and returns how many there were; raises ConformError with every fault.

    A kind without a schema is a fault, too.
    """
    text = "".join(f"---\n{yaml.safe_dump(dict(one))}" for one in objects)
    return check_text(folder, text)


def check_text(folder: Path, text: str) -> int:
    """The same for YAML as it stands in a file, where a key that is there twice is a fault as well."""
    command = [
        build.binary("kubeconform"), "-strict", "-output", "json", "-verbose",
        "-schema-location", f"{folder}/{_LOCATION}", "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    try:
        found = json.loads(done.stdout)["resources"]
    except (ValueError, KeyError):
        raise ConformError(done.stdout + done.stderr) from None
    bad = [one for one in found if one["status"] != "statusValid"]
    if bad or done.returncode:
        raise ConformError("\n".join(f"{o['kind']} {o['name']}: {o['msg']}" for o in bad) or done.stderr)
    return len(found)


def _write(folder: Path, version: str, kind: str, schema: Object, known: Object) -> None:
    parts: Object = {}
    wanted = _references(schema)
    while wanted:
        name = wanted.pop()
        if name not in parts:
            parts[name] = _strict(known[name])
            wanted |= _references(known[name])
    group, _, last = version.rpartition("/")
    found = {"allOf": [_strict(schema)], "components": {"schemas": parts}}
    # Of what has no group kubeconform takes the version for one.
    (folder / f"{group or version}_{last}_{kind.lower()}.json").write_text(json.dumps(found))


def _references(schema: object) -> set[str]:
    if isinstance(schema, dict):
        own = schema.get("$ref")
        found = {own.removeprefix(_REF)} if isinstance(own, str) else set()
        return found.union(*map(_references, schema.values()))
    if isinstance(schema, list):
        return set().union(*map(_references, schema))
    return set()


def _strict(schema: object) -> Any:
    """OpenAPI as Kubernetes writes it -> JSON schema that refuses what it does not name."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {
        # Names of fields are no keywords: one may be called `default` or `nullable`.
        key: {name: _strict(one) for name, one in value.items()} if key == "properties" else _strict(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-")
        and key not in ("default", "description", "nullable", "example")
    }
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        found["type"] = [schema["type"], "null"]
    open_ = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and not open_:
        found["additionalProperties"] = False
    return found
