"""What the quickstart leaves behind: in the cluster, in its volume, in the pods that ran."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path

import yaml
from tests.cluster.api import Object
from tests.e2e.box import host

from tunewright_workloads import samples
from tunewright_workloads.contract.lineage import Manifest

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples/quickstart.yaml"
CLAIM, JOB, ENDPOINT = yaml.safe_load_all(QUICKSTART.read_text())
NAME = JOB["metadata"]["name"]
STEPS, EVERY = JOB["spec"]["training"]["steps"], JOB["spec"]["checkpoint"]["everySteps"]


def objects(box: host.Box, namespace: str | None = None) -> set[str]:
    """`kind/name` of everything in a namespace, or of everything that is in none; no events."""
    inside = namespace is not None
    kinds = box.kubectl("api-resources", f"--namespaced={str(inside).lower()}", "--verbs=list", "-o", "name")
    listed = [kind for kind in kinds.split() if not kind.startswith(("events", "componentstatuses"))]
    where = ["--namespace", namespace] if inside else []
    return set(box.kubectl("get", ",".join(listed), *where, "--ignore-not-found", "-o", "name").split())


def resource(box: host.Box, kind: str, namespace: str, name: str = NAME) -> Object:
    return box.request("GET", f"/apis/tunewright.dev/v1alpha1/namespaces/{namespace}/{kind}/{name}")


def output(box: host.Box, namespace: str) -> Path:
    """Where the quickstart's output is on the host: the folder of the volume that its claim is bound to."""
    name = CLAIM["metadata"]["name"]
    claim = box.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
    root, _, path = JOB["spec"]["output"]["uri"].removeprefix("pvc://").partition("/")
    assert root == name
    volume = box.request("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    return Path(volume["spec"]["local"]["path"]) / path


def checkpoints(folder: Path) -> list[int]:
    below = folder / "checkpoints"
    return sorted(int(p.name) for p in below.iterdir() if p.name.isdigit()) if below.is_dir() else []


def lines(folder: Path) -> list[Object]:
    """What the run has recorded so far; the last line may be half written."""
    file = folder / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(folder) if line["event"] == "step"]


def published(folder: Path) -> dict[str, str]:
    """sha256 of every published file, read from the disk and found to be what tunewright.json says."""
    merged = folder / "merged"
    manifest = Manifest.model_validate_json((merged / "tunewright.json").read_bytes())
    found = {}
    for name, record in manifest.files.items():
        with (merged / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        assert found[name] == record.sha256, name
    return found


def faq() -> dict[str, str]:
    rows = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    return {user["content"]: assistant["content"] for user, assistant in rows}


def of_job(box: host.Box, namespace: str) -> list[Object]:
    return box.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"tunewright.dev/job={NAME}")


def leaving(box: host.Box, namespace: str) -> bool:
    """Whether all pods of the job are on their way out, or gone."""
    return all("deletionTimestamp" in one["metadata"] for one in of_job(box, namespace))


def jobs_of(box: host.Box, namespace: str) -> set[str]:
    return {one["metadata"]["uid"] for one in box.items(f"/apis/batch/v1/namespaces/{namespace}/jobs")}


def tell(pods: list[Object]) -> None:
    """Says how long the workload of each finished pod ran."""
    for one in pods:
        (status,) = one["status"]["containerStatuses"]
        state = status["state"].get("terminated") or {}
        if state.get("startedAt") and state.get("finishedAt"):
            took = _moment(state["finishedAt"]) - _moment(state["startedAt"])
            print(f"{took:7.0f} s    of it in the container {status['name']}", flush=True)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
