"""Dataset, base, checkpoints, adapter and published model, all in a bucket; nothing but programs of ours."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import gcs, merging
from tunewright_workloads import samples, storage
from tunewright_workloads.contract.lineage import Manifest
from tunewright_workloads.gemma import tiny

pytestmark = pytest.mark.pipeline

TRAIN = {
    "job": "team/journey", "model": {"name": "gemma-4-tiny", "source": "gs://bucket/base"},
    "dataset": {
        "train": ["gs://bucket/data/faq.jsonl"], "validation": [], "format": "auto", "maxLength": 256,
        "overlong": "drop", "packing": True, "lossOn": "assistant",
    },
    "adapter": {"rank": 4, "alpha": 8},
    "training": {"steps": 4, "globalBatchSize": 4, "learningRate": 0.003, "warmupSteps": 0, "seed": 7},
    "mesh": {"accelerator": "cpu"}, "computeDtype": "float32", "checkpointEvery": 2, "checkpointKeep": 2,
    "output": "gs://bucket/job",
}  # fmt: skip
MERGE = {
    "job": "team/journey", "model": {"name": "gemma-4-tiny", "source": "gs://bucket/base"},
    "adapter": "gs://bucket/job", "output": "gs://bucket/job/merged",
}  # fmt: skip


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Without the proxy, which does not speak all that Orbax's own clients do.
    with gcs.server() as url:
        for name, value in gcs.environment(url).items():
            monkeypatch.setenv(name, value)
        tiny.write(tmp_path / "base")
        store = storage.store("gs://bucket/base")
        for name, data in merging.content(tmp_path / "base").items():
            store.put(name, data)
        storage.store("gs://bucket/data").put("faq.jsonl", samples.path("faq").read_bytes())
        yield url


def run(tmp_path: Path, module: str, *arguments: str, **config: object) -> str:
    if config:
        path = tmp_path / f"{module}.json"
        path.write_text(json.dumps({**config, "work": str(tmp_path / module)}))
        arguments = ("--config", str(path))
    done = subprocess.run(
        [sys.executable, "-m", f"tunewright_workloads.{module}", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_model_is_trained_merged_and_verified_from_bucket_to_bucket(bucket: str, tmp_path: Path) -> None:
    run(tmp_path, "train", **TRAIN, progress=str(tmp_path / "progress.json"))
    run(tmp_path, "merge", **MERGE)
    manifest = Manifest.model_validate_json(storage.store("gs://bucket/job/merged").get("tunewright.json"))
    told = json.loads((tmp_path / "progress.json").read_text())["artifacts"]
    assert told == {"adapter": manifest.adapter.digest, "dataset": manifest.dataset_digest}
    assert manifest.adapter.step == 4 and manifest.adapter.modules == 24
    assert manifest.dataset_digest
    assert len(manifest.probes) > 4
    told = run(tmp_path, "merge.verify", "gs://bucket/job/merged")
    assert told.rstrip().endswith("verified") and "skipped" not in told and told.count(" ok ") == 7
    path = storage.localize("gs://bucket/job/merged", tmp_path / "served")
    assert {p.name for p in path.iterdir() if not p.name.startswith(".")} == {
        *manifest.files,
        "tunewright.json",
    }
