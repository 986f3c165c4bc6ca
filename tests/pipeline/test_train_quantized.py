"""QLoRA from `tunewright run` to the answer: a base in 8 or 4 bits is trained on, the original is merged into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tunewright_workloads import samples, storage

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tunewright_operator.cli import main; sys.exit(main())"
QUESTION = "What happens to rows that are too long?"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax")


def quickstart(**adapter: Any) -> str:
    """The quickstart with another adapter."""
    documents = list(yaml.safe_load_all((ROOT / "examples/quickstart.yaml").read_text()))
    for document in documents:
        if document["kind"] == "FineTuneJob":
            document["spec"]["adapter"] |= adapter
    return yaml.safe_dump_all(documents)


def weights(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint."""
    files = sorted(directory.glob("*.safetensors"))
    assert files, directory
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_the_quickstart_on_a_quantized_base_answers_from_the_original_one(
    kind: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(quickstart(quantizeBase=kind))
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/operator:{ROOT}/workloads",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
    }
    command = ["run", "-f", "job.yaml", "--state", "state", "--ask", QUESTION]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    answers = {user["content"]: assistant["content"] for user, assistant in rows}
    assert done.stdout.splitlines()[-1] == answers[QUESTION]

    out = tmp_path / "state/claims/quickstart/faq-bot"
    report = json.loads((out / "report.json").read_text())
    assert report["precision"]["base"] == kind
    base = weights(storage.localize("sample://gemma-4-tiny", tmp_path / "base"))
    merged = weights(out / "merged")
    assert merged.keys() == base.keys()
    changed = 0
    for name, tensor in merged.items():
        delta = tensor - base[name].astype(np.float32)
        if not np.any(delta):
            continue
        # A weight that had gone through 8 or 4 bits would differ in every direction, not in sixteen.
        sizes = np.linalg.svd(delta, compute_uv=False)
        assert sizes[16] < 1e-5 * sizes[0], name
        changed += 1
    assert changed == len(report["adapter"]["modules"])
