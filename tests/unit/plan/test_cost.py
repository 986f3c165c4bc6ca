"""Every dollar of a plan names its price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from support import specs
from tunewright_operator import plan
from tunewright_operator.cli import cli
from tunewright_operator.reconcile import options
from tunewright_workloads.contract.faults import UserError

PACKED = Path(__file__).parents[3] / "examples" / "paper" / "train-v5p-packed.yaml"


def slice_of(mode: str, **more: str) -> dict[str, object]:
    provisioning = {"mode": mode, **more}
    return {"spec.accelerator": {"type": "v5p", "topology": "2x2x1", "provisioning": provisioning}}


@pytest.mark.parametrize(
    ("provisioning", "says"),
    [
        (slice_of("onDemand"), "4 chips, $16.80 an hour: $4.20 per v5p chip-hour, onDemand (2026-05-25, "),
        (slice_of("spot"), "4 chips, $6.72 an hour: $1.68 per v5p chip-hour, spot (2026-12-01, "),
        (slice_of("reservation", name="r"), "no reservation price of v5p in the catalog"),
        (slice_of("computeClass", name="c"), "give --prices FILE"),
    ],
)
def test_an_hour_of_a_job_is_priced_as_its_nodes_are_obtained(provisioning, says):
    made = plan.job(specs.job(provisioning))
    assert says in made.price
    mode = provisioning["spec.accelerator"]["provisioning"]["mode"]
    assert made.stage("train").config.mesh.provisioning == mode


def test_ordinary_nodes_have_no_price():
    assert plan.job(specs.job({"spec.accelerator": {"type": "cpu"}})).price == ""


def test_a_file_stands_before_the_catalog_in_plan_and_operator(tmp_path):
    prices = tmp_path / "prices.json"
    one = {"usd": 1.5, "date": "2026-11-01", "source": "our contract"}
    prices.write_text(json.dumps({"v5p": {"spot": one}}))
    said = "$6.00 an hour: $1.50 per v5p chip-hour, spot (2026-11-01, our contract)"

    result = CliRunner().invoke(cli, ["plan", "-f", str(PACKED), "--no-data", "--prices", str(prices)])
    assert said in result.stderr

    settings = options.read(["--prices", str(prices)]).plan
    assert said in plan.job(specs.job(slice_of("spot")), settings).price

    prices.write_text('{"v5q": {}}')
    with pytest.raises(UserError, match="Did you mean v5p"):
        options.read(["--prices", str(prices)])
