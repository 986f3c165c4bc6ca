"""Killed at any instant, in a merge or in its publication to a bucket, the next run ends in the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import gcs, merging
from tunewright_workloads.gemma import tiny

pytestmark = pytest.mark.pipeline


def survive(config_path: Path, points: int, seed: int, environment: dict[str, str]) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "support.killing", str(config_path), str(points), str(seed)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("kill")
    tiny.write(top / "base", multimodal=True)
    merging.save(top / "train", top / "base", merging.arrays(top / "base"))
    return top


@pytest.mark.parametrize("size", [None, 300_000])
def test_a_merge_killed_at_random_points_resumes_to_the_same_bytes(
    size: int | None, made: Path, tmp_path: Path
) -> None:
    config = merging.config(
        made / "base", made / "train", tmp_path / "out", tmp_path / "work", max_shard_size=size
    )
    (tmp_path / "merge.json").write_text(config.text())
    points = 52 if size is None else 15
    assert (
        survive(tmp_path / "merge.json", points, 7, {})["killed"] >= points - 2
    )  # the count of operations varies


def test_a_publication_to_a_bucket_killed_at_random_points_resumes_to_the_same_bytes(
    made: Path, tmp_path: Path
) -> None:
    with gcs.server() as backend, gcs.proxy(backend) as proxy:
        config = merging.config(made / "base", made / "train", "gs://bucket/out", tmp_path / "work")
        (tmp_path / "merge.json").write_text(config.text())
        result = survive(tmp_path / "merge.json", 21, 11, gcs.environment(proxy.url))
    assert result["killed"] >= 20
