"""`api.load`: files and texts, many documents, every fault at once with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.builders import ENDPOINT, JOB, endpoint, job, merged
from tunewright_operator import api
from tunewright_workloads.contract.faults import UserError

ROOT = Path(__file__).parents[3]


def faults(text: str, **options: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        api.load(text, name="f.yaml", **options)  # type: ignore[arg-type]
    return [str(fault) for fault in caught.value.faults]


def test_the_quickstart_holds_a_job_an_endpoint_and_a_claim() -> None:
    found = api.load(ROOT / "examples" / "quickstart.yaml")
    assert [type(one).__name__ for one in found] == ["FineTuneJob", "ServeEndpoint"]
    assert [claim["metadata"]["name"] for claim in found.claims] == ["quickstart"]


def test_every_fault_of_every_document_is_shown_at_once() -> None:
    bad_job = job().set("training", {"epochs": 1, "steps": 2, "warmup": 3}).set("adapter.rank", 0).text()
    bad_endpoint = endpoint().set("accelerator.topology", "4x4").set("drainSeconds", -1).text()
    assert [fault.split(": ")[:3] for fault in faults(f"{bad_job}---\n{bad_endpoint}")] == [
        ["f.yaml", "FineTuneJob/support-bot", "spec.adapter.rank"],
        ["f.yaml", "FineTuneJob/support-bot", "spec.training.warmup"],
        ["f.yaml", "FineTuneJob/support-bot", "spec.training.epochs"],
        ["f.yaml", "ServeEndpoint/support-bot", "spec.drainSeconds"],
        ["f.yaml", "ServeEndpoint/support-bot", "spec.accelerator.topology"],
    ]


def test_a_rule_that_reads_a_broken_field_is_not_asked() -> None:
    text = job().set("accelerator", {"type": "v7", "topology": "9x9"}).text()
    assert [fault.split(": ")[2] for fault in faults(text)] == ["spec.accelerator.type"]


def test_a_missing_field_does_not_hide_the_rules_of_the_others() -> None:
    text = job().set("output", None).set("training", {"epochs": 1, "steps": 2}).text()
    assert [fault.split(": ")[2] for fault in faults(text)] == ["spec.output", "spec.training.epochs"]


ONE_FAULT = [
    ("nothing at all", "", "f.yaml: holds no resource"),
    ("only comments", "# nothing\n", "f.yaml: holds no resource"),
    ("a list at the top", "- a\n- b\n", "f.yaml: must be a mapping with apiVersion, kind, metadata and spec"),
    ("a word at the top", "hello\n---\n", "f.yaml: must be a mapping"),
    ("no kind", "apiVersion: tunewright.dev/v1alpha1\nspec: {}\n", "f.yaml: kind: is required"),
    ("a kind that is misspelt", "kind: FinetuneJob\nx: 1\n", "Did you mean FineTuneJob?"),
    ("a kind of somebody else", "kind: Deployment\nx: 1\n", "must be FineTuneJob or ServeEndpoint (got \"Deployment\")"),
    ("a kind that is a list", "kind: [a]\nx: 1\n", "f.yaml: kind: must be FineTuneJob or ServeEndpoint"),
    ("no version", "kind: FineTuneJob\nspec: {}\n", "f.yaml: FineTuneJob/1: apiVersion: must be tunewright.dev/v1alpha1"),
    ("a later version", "kind: FineTuneJob\napiVersion: tunewright.dev/v1\n", "This release knows tunewright.dev/v1alpha1"),
    ("a claim without a name", "kind: PersistentVolumeClaim\napiVersion: v1\n", "PersistentVolumeClaim: metadata.name: is required"),
    ("a job twice", f"{job().text()}---\n{job().text()}", "f.yaml: FineTuneJob/support-bot: stands twice"),
    ("no name", job().patch({"metadata": {"name": None}}).text(), "f.yaml: FineTuneJob/1: metadata.name: is required"),
    ("metadata that is a word", json.dumps({**JOB, "metadata": "x"}), "f.yaml: FineTuneJob/1: metadata: must be a mapping"),
    ("a name that is a number", json.dumps({**JOB, "metadata": {"name": 7}}), "f.yaml: FineTuneJob/1: metadata.name: must be text"),
    ("misspelt metadata", job().patch({"metadata": {"nmae": "x"}}).text(), "metadata.nmae: is not a field. Did you mean name?"),
    ("no spec", "kind: FineTuneJob\napiVersion: tunewright.dev/v1alpha1\nmetadata: {name: a}\n", "FineTuneJob/a: spec: is required"),
    ("a spec that is a list", json.dumps({**JOB, "spec": []}), "spec: must be a mapping"),
    ("a field outside of spec", json.dumps({**JOB, "suspend": True}), "suspend: is not a field. It belongs at spec.suspend"),
    ("a label that YAML reads as false", job().text() + "  podTemplate: {labels: {team: no}}\n", 'spec.podTemplate.labels.team: must be text (got false). YAML reads no as true or false: write "no" in quotes'),
    ("a variable that YAML reads as a number", job().text() + "  podTemplate: {env: [{name: A, value: 1}]}\n", 'spec.podTemplate.env[0].value: must be text (got 1). Write "1" in quotes'),
    ("a number in quotes", job().set("adapter", {"rank": "8"}).text(), "spec.adapter.rank: must be a whole number (got \"8\"). Write it without quotes"),
    ("a truth value for a number", job().text() + "  limits: {retries: yes}\n", "spec.limits.retries: must be a whole number (got true)"),
    ("a run time in seconds without a unit", job().text() + "  limits: {runTime: 3600}\n", "spec.limits.runTime: must be text (got 3600). Example: 12h"),
    ("not a number", job().text() + "  training: {learningRate: .nan}\n", "spec.training.learningRate: must be a finite number"),
    ("infinity", job().text() + "  training: {epochs: .inf}\n", "spec.training.epochs: must be a finite number"),
    ("a model by name alone", job().set("model", "gemma-4-31b").text(), 'spec.model: must be a mapping (got "gemma-4-31b"). Example: {name: gemma-4-31b}'),
    ("a section that is a list", job().set("training", []).text(), "spec.training: must be a mapping (got []). With steps, epochs, "),
    ("names of Python", job().set("output.merge_it", True).text(), "spec.output.merge_it: is not a field. Did you mean merge?"),
    ("quantities that are lists", job().set("podTemplate.resources.requests.cpu", []).text(), "spec.podTemplate.resources.requests.cpu: must be text or a whole number (got [])"),
    ("a key of two lines", job().text() + '  podTemplate: {labels: {"a\\nb": 1}}\n', "spec.podTemplate.labels.a\\nb: must be text"),
    ("a name of two lines", json.dumps({**JOB, "metadata": {"name": "a\nb"}}), "f.yaml: FineTuneJob/1: metadata.name: must be lower-case"),
    ("a job that does not merge for an endpoint", f"{job().set('output.merge', False).text()}---\n{endpoint().text()}", "ServeEndpoint/support-bot: spec.model.fineTuneJobRef.name: must be a job that merges"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [c[1:] for c in ONE_FAULT], ids=[c[0] for c in ONE_FAULT])
def test_one_fault_with_its_message(text: str, message: str) -> None:
    found = faults(text)
    assert len(found) == 1, found
    assert message in found[0]


def test_documents_without_a_name_are_counted() -> None:
    assert faults(f"{job().text()}---\nkind: X\n---\n- a\n") == [
        'f.yaml: document 2: kind: must be FineTuneJob or ServeEndpoint (got "X"). Beside them a file may hold PersistentVolumeClaim (v1)',
        "f.yaml: document 3: must be a mapping with apiVersion, kind, metadata and spec",
    ]


def test_a_list_of_kubectl_is_read_item_by_item() -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [JOB, ENDPOINT]})
    assert [one.kind for one in api.load(text)] == ["FineTuneJob", "ServeEndpoint"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [{**JOB, "kind": "Job"}]})
    assert faults(text)[0].startswith("f.yaml: items[0]: kind: must be FineTuneJob or ServeEndpoint")


@pytest.mark.parametrize("items", [None, 7, [], {}, [None]])
def test_a_list_of_nothing_is_a_fault(items: object) -> None:
    with pytest.raises(UserError):
        api.load(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), name="f.yaml")


def test_what_kubectl_prints_of_a_stored_job_can_be_read_again() -> None:
    stored = merged(
        JOB,
        {
            "metadata": {
                "uid": "0",
                "generation": 2,
                "resourceVersion": "7",
                "creationTimestamp": "2026-12-01T00:00:00Z",
                "managedFields": [{"manager": "kubectl"}],
                "ownerReferences": [{"kind": "X"}],
            },
            "status": {"phase": "Training", "somethingNew": 1},
        },
    )
    (read,) = api.load(json.dumps(stored))
    assert isinstance(read, api.FineTuneJob)
    assert read.status.phase == "Pending"  # as when it is applied anew
    kept = api.parse(api.FineTuneJob, stored)
    assert kept.status.phase == "Training"
    assert kept.metadata.generation == 2


# -- files -------------------------------------------------------------------------------------------


def test_a_file_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(UserError, match=r"^my\.yaml:1:5: is not YAML"):
        api.load(path)
    with pytest.raises(UserError, match=r"^my\.yaml:1:5: is not YAML"):
        api.load(str(path))


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\x00", "is not text in UTF-8"), (b"", "holds no resource")]
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        api.load(path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + job().text().replace("\n", "\r\n").encode())
    assert len(api.load(path)) == 1


@pytest.mark.parametrize("path", ["nowhere.yaml", "no\x00where.yaml", "."])
def test_a_path_that_cannot_be_read(path: str) -> None:
    with pytest.raises(UserError, match=r"cannot be read|is not a path"):
        api.load(path)


# -- local paths -------------------------------------------------------------------------------------


def local() -> str:
    return (
        job()
        .tiny()
        .set("dataset.train", ["file://./data/a.jsonl", "file://b.jsonl", "file:///abs/c.jsonl"])
        .set("dataset.validation", ["file://../val.jsonl"])
        .set("model.source", "file://model")
        .set("output.uri", "file://./out")
        .text()
    )


def test_relative_paths_are_taken_from_the_base(tmp_path: Path) -> None:
    base = tmp_path / "jobs"
    (read,) = api.load(local(), base=base)
    assert isinstance(read, api.FineTuneJob)
    assert read.spec.dataset.train == [
        f"file://{base}/data/a.jsonl",
        f"file://{base}/b.jsonl",
        "file:///abs/c.jsonl",
    ]
    assert read.spec.dataset.validation == [f"file://{tmp_path}/val.jsonl"]
    assert read.spec.model.uri == f"file://{base}/model"
    assert read.spec.output.uri == f"file://{base}/out"


def test_a_folder_of_this_machine_may_have_spaces_in_its_name(tmp_path: Path) -> None:
    base = tmp_path / "my dätä"
    (read,) = api.load(local(), base=base)
    assert read.spec.dataset.train[0] == f"file://{base}/data/a.jsonl"
    assert read.spec.output.uri == f"file://{base}/out"


def test_a_cluster_refuses_relative_paths_and_an_output_that_dies_with_the_pod() -> None:
    assert [fault.split(": ")[2] for fault in faults(local())] == [
        "spec.model.source",
        "spec.dataset.train[0]",
        "spec.dataset.train[1]",
        "spec.dataset.validation[0]",
        "spec.output.uri",
    ]
    outputs = faults(job().tiny().set("output.uri", "file:///tmp/out").text())
    assert ["file:// in a cluster is lost with the pod" in fault for fault in outputs] == [True]
    assert len(api.load(job().tiny().set("output.uri", "file:///tmp/out").text(), base="/")) == 1


def test_an_object_of_newer_crds_is_read_without_what_only_they_know() -> None:
    body = json.loads(json.dumps(JOB))
    body["spec"]["dataset"]["fromTheFuture"] = {"a": 1}
    body["spec"]["alsoNew"] = True
    with pytest.raises(UserError, match="fromTheFuture"):
        api.parse(api.FineTuneJob, body)
    assert api.parse(api.FineTuneJob, body, newer=True) == api.parse(
        api.FineTuneJob, json.loads(json.dumps(JOB))
    )
    body["spec"]["dataset"]["maxLength"] = -1
    with pytest.raises(UserError, match="maxLength"):
        api.parse(api.FineTuneJob, body, newer=True)
