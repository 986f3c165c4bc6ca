"""The CRDs: structural by Kubernetes' rules, bounded everywhere, and not stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.bad_specs import TABLE, Bad
from support.good_specs import GOOD
from tunewright_operator import api
from tunewright_operator.api import crds, reference
from tunewright_operator.api.rules import CEL, PRESERVE
from tunewright_operator.api.schema import structural

ROOT = Path(__file__).parents[3]
SCHEMAS = {name: structural(kind) for name, kind in api.KINDS.items()}


def nodes(node: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{place}.{name}".lstrip("."))
    if "items" in node:
        yield from nodes(node["items"], f"{place}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from nodes(node["additionalProperties"], f"{place}{{}}")


ALL = [(kind, place, node) for kind, schema in SCHEMAS.items() for place, node in nodes(schema)]
IDS = [f"{kind}.{place}" for kind, place, _ in ALL]


@pytest.mark.parametrize(("kind", "place", "node"), ALL, ids=IDS)
def test_every_node_is_structural_and_bounded(kind: str, place: str, node: dict[str, Any]) -> None:
    forbidden = {"$ref", "$defs", "oneOf", "not", "allOf", "const", "title", "propertyNames"}
    assert not forbidden & set(node)
    assert node.get("additionalProperties") is not False
    if node.get("x-kubernetes-int-or-string"):
        assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}]
        assert "type" not in node
        assert "maxLength" in node
        return
    assert "anyOf" not in node
    if PRESERVE in node:
        assert "type" not in node
        return
    assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    if not place.startswith("spec") and not place.startswith("status"):
        return
    if node["type"] == "string":
        assert "enum" in node or "maxLength" in node or node.get("format") == "date-time"
    if node["type"] == "array":
        assert "maxItems" in node
    if "additionalProperties" in node:
        assert "maxProperties" in node
    if node["type"] in ("integer", "number") and place.startswith("spec"):
        assert "minimum" in node
        assert "maximum" in node


@pytest.mark.parametrize(
    ("kind", "place", "node"),
    [(k, p, n) for k, p, n in ALL if p.rpartition(".")[2] and "{}" not in p],
    ids=[i for i in IDS if i.rpartition(".")[2] and "{}" not in i],
)
def test_every_field_is_described(kind: str, place: str, node: dict[str, Any]) -> None:
    if place.startswith(("spec", "status")) and not place.endswith("[]"):
        assert node.get("description", "").strip().endswith((".", ":", ")"))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_status_has_no_defaults(kind: str) -> None:
    """What the API server fills in would differ from what the operator wrote, and be written again."""
    for place, node in nodes(SCHEMAS[kind]["properties"]["status"]):
        assert "default" not in node, place


def relaxed(node: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0's dialect as JSON Schema: exclusive bounds are numbers, unknown fields are refused."""
    out = {k: v for k, v in node.items() if not k.startswith("x-kubernetes") and k != "nullable"}
    if node.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    for bound in ("Minimum", "Maximum"):
        if out.pop(f"exclusive{bound}", False):
            out[f"exclusive{bound}"] = out.pop(bound.lower())
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = relaxed(out[key])
    if "properties" in out:
        out["properties"] = {name: relaxed(inner) for name, inner in out["properties"].items()}
        if node.get("type") == "object" and set(out["properties"]) != {"name", "generateName"}:
            out["additionalProperties"] = False
    return out


VALIDATORS = {kind: jsonschema.Draft202012Validator(relaxed(schema)) for kind, schema in SCHEMAS.items()}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_is_json_schema(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(relaxed(SCHEMAS[kind]))


@pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
def test_what_is_good_passes_the_schema(data: dict[str, Any]) -> None:
    VALIDATORS[data["kind"]].validate(data)


@pytest.mark.parametrize(
    "bad",
    [b for b in TABLE if b.server and "Duplicate" not in b.server and "RFC" not in b.server],
    ids=lambda b: b.name,
)
def test_types_bounds_and_words_are_refused_by_the_schema_alone(bad: Bad) -> None:
    assert not VALIDATORS[bad.kind].is_valid(bad.data)


@pytest.mark.parametrize("bad", [b for b in TABLE if not b.server], ids=lambda b: b.name)
def test_what_is_left_to_the_rules_passes_the_schema(bad: Bad) -> None:
    """So that the message of the rule is shown, and not a pattern."""
    VALIDATORS[bad.kind].validate(bad.data)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_defaults_pass_their_own_schema(kind: str) -> None:
    for place, node in nodes(SCHEMAS[kind]["properties"]["spec"]):
        if "default" in node:
            assert jsonschema.Draft202012Validator(relaxed(node)).is_valid(node["default"]), place


def test_rules_have_messages_and_paths_that_exist() -> None:
    for kind, place, node in ALL:
        for entry in node.get(CEL, []):
            assert entry["rule"]
            assert 10 < len(entry["message"]) < 400, entry["message"]
            assert "\n" not in entry["message"] + entry["rule"]
            current = node
            for part in entry.get("fieldPath", "").split(".")[1:]:
                assert part in current["properties"], f"{kind}.{place}: {entry['fieldPath']}"
                current = current["properties"][part]


# -- what is committed -------------------------------------------------------------------------------


def test_the_committed_crds_are_those_of_the_models() -> None:
    assert crds.stale(ROOT / "manifests" / "crds") == [], "run `make crds`"


def test_the_committed_reference_is_that_of_the_models() -> None:
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == reference.render(), (
        "run `make crds`"
    )


def test_rendering_is_the_same_at_every_call_and_has_no_anchors() -> None:
    first, second = crds.render(), crds.render()
    assert first == second
    for text in first.values():
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
        assert "&id" not in text


def test_a_crd_fits_into_the_annotation_of_a_client_side_apply() -> None:
    for data in crds.definitions().values():
        assert len(json.dumps(data)) < 262_144


def test_files_are_written_checked_and_told_when_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "crds"
    assert crds.main(["--check", str(folder)]) == 1
    assert crds.main(["--output", str(folder)]) == 0
    assert crds.main(["--check", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["finetunejobs.yaml", "serveendpoints.yaml"]
    (folder / "finetunejobs.yaml").write_text("old", encoding="utf-8")
    (folder / "left.yaml").write_text(crds.HEADER, encoding="utf-8")
    (folder / "kustomization.yaml").write_text("resources: []", encoding="utf-8")
    capsys.readouterr()
    assert crds.main(["--check", str(folder)]) == 1
    stale = capsys.readouterr().err
    assert "finetunejobs.yaml is stale" in stale
    assert "left.yaml is stale" in stale
    assert "kustomization" not in stale


def test_the_reference_is_written_and_checked(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "reference.md"
    assert reference.main(["--check", str(page)]) == 1
    assert reference.main(["--output", str(page)]) == 0
    assert reference.main(["--check", str(page)]) == 0


def test_the_reference_names_every_field_and_every_rule() -> None:
    page = reference.render()
    for _, place, node in ALL:
        name = place.rpartition(".")[2].removesuffix("[]").removesuffix("{}")
        if place.startswith(("spec.", "status.")) and not place.startswith("spec.accelerator.mesh."):
            assert f"`{name}`" in page, place
        for entry in node.get(CEL, []):
            if node.get("type") == "object" and place:
                assert entry["message"] in page, entry["message"]
