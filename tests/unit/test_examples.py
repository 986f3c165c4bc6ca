"""Every example in the repository is a resource that plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tunewright_operator.cli import cli

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_plans(path: Path):
    result = CliRunner().invoke(cli, ["plan", "-f", str(path), "--no-data"])
    assert result.exit_code == 0, result.output
    made = [d for d in yaml.safe_load_all(result.stdout) if d]
    parts = {(d["kind"], d["metadata"]["labels"]["app.kubernetes.io/component"]) for d in made}
    wanted = {d["kind"] for d in yaml.safe_load_all(path.read_text())}
    assert (("Job", "train") in parts) == ("FineTuneJob" in wanted)
    assert (("Deployment", "serve") in parts) == ("ServeEndpoint" in wanted)


def test_both_sides_of_the_paper_do_the_same_work():
    tpu, gpu = (
        yaml.safe_load((FOLDER / "paper" / f"train-{n}.yaml").read_text())["spec"] for n in ("v5p", "h100")
    )
    for field in ("model", "dataset", "adapter"):
        assert tpu[field] == gpu[field]
    same = {k: v for k, v in tpu["training"].items() if k != "microBatchSize"}
    assert same == {k: v for k, v in gpu["training"].items() if k != "microBatchSize"}


def test_the_quickstart_asks_for_nothing_that_a_laptop_lacks():
    for document in yaml.safe_load_all((FOLDER / "quickstart.yaml").read_text()):
        if document["kind"] in ("FineTuneJob", "ServeEndpoint"):
            assert document["spec"]["accelerator"] == {"type": "cpu"}
            assert "gs://" not in json.dumps(document)
