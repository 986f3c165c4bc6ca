from __future__ import annotations

import pytest

from tunewright_workloads.contract import accelerators, models
from tunewright_workloads.contract.configs import TARGETS
from tunewright_workloads.contract.faults import UserError


def test_the_31b_has_the_adapter_size_that_a_compiled_step_showed():
    # 472.5 M parameters at rank 64 on all seven modules, K and V of a local layer sharing one A.
    assert models.model("gemma-4-31b").lora_params(64, TARGETS) == 472_514_560


def test_leaving_out_the_kv_targets_leaves_out_their_parameters():
    spec = models.model("gemma-4-31b")
    without = tuple(t for t in TARGETS if t not in ("k_proj", "v_proj"))
    gap = spec.lora_params(1, TARGETS) - spec.lora_params(1, without)
    assert gap == 50 * (5376 + 2 * 16 * 256) + 10 * (5376 + 4 * 512)


@pytest.mark.parametrize(
    ("name", "tp"),
    [("gemma-4-31b", 4), ("gemma-4-26b-a4b", 2), ("gemma-4-e4b", 2), ("gemma-4-e2b", 1), ("gemma-4-tiny", 1)],
)
def test_kv_heads_limit_tensor_parallelism(name, tp):
    assert models.model(name).max_tensor_parallel == tp


def test_a_31b_has_ten_global_layers_and_the_last_is_global():
    spec = models.model("gemma-4-31b")
    assert spec.global_layers() == [5, 11, 17, 23, 29, 35, 41, 47, 53, 59]


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean gemma-4-31b"):
        models.model("gemma4-31B")


@pytest.mark.parametrize(
    ("kind", "topology", "chips_per_host", "hosts", "chips", "machine"),
    [
        ("v5p", "2x2x1", None, 1, 4, "ct5p-hightpu-4t"),
        ("v5p", "2x2x2", None, 2, 8, "ct5p-hightpu-4t"),
        ("v5p", "4x4x8", None, 32, 128, "ct5p-hightpu-4t"),
        ("v5p", "4x8x8", None, 64, 256, "ct5p-hightpu-4t"),
        ("v6e", "1x1", None, 1, 1, "ct6e-standard-1t"),
        ("v6e", "2x4", None, 1, 8, "ct6e-standard-8t"),
        ("v6e", "2x4", 8, 1, 8, "ct6e-standard-8t"),
        ("v6e", "2x4", 4, 2, 8, "ct6e-standard-4t"),
        ("v6e", "16x16", None, 64, 256, "ct6e-standard-4t"),
        ("v5e", "2x4", 4, 2, 8, "ct5lp-hightpu-4t"),
        ("v7x", "2x2x1", None, 1, 4, "tpu7x-standard-4t"),
        ("v7x", "4x4x4", None, 16, 64, "tpu7x-standard-4t"),
    ],
)
def test_a_topology_is_a_number_of_machines(kind, topology, chips_per_host, hosts, chips, machine):
    row = accelerators.slice_of(kind, topology, chips_per_host=chips_per_host)
    assert (row.hosts, row.chips, row.machine) == (hosts, chips, machine)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("v5p", "2x2"), "spec.accelerator.topology: must be one of 2x2x1"),
        (("v5p", None), "spec.accelerator.topology: is required for type v5p"),
        (("v5p", "8x4x4"), "must be one of"),
        (("v6e", "2x4", None, 2), "spec.accelerator.chipsPerHost: must be 8, 4"),
        (("v6e", "2x4", 8), "spec.accelerator.count: does not exist"),
        (("h100", None, 3), "spec.accelerator.count: must be one of 1, 2, 4, 8"),
        (("h100", "2x2"), "spec.accelerator.topology: does not exist"),
        (("cpu", "2x2"), "spec.accelerator.topology: does not exist"),
        (("v5p-8", "2x2x1"), "Did you mean v5p?"),
    ],
)
def test_a_slice_that_does_not_exist_is_refused_by_field(arguments, says):
    with pytest.raises(UserError) as caught:
        accelerators.slice_of(*arguments)
    assert says in caught.value.text()


@pytest.mark.parametrize(
    ("kind", "chips", "name"), [("v5p", 4, "v5p-8"), ("v6e", 8, "v6e-8"), ("v7x", 4, "v7x-8")]
)
def test_slices_are_named_as_people_name_them(kind, chips, name):
    assert accelerators.accelerator(kind).slice_name(chips) == name


def test_every_price_has_a_date_and_a_source():
    for chip in accelerators.ACCELERATORS.values():
        assert all(p.date and p.source for p in chip.prices().values())


def test_the_papers_hourly_prices_follow_from_the_catalog():
    hour = {k: accelerators.accelerator(k).price.usd for k in ("v5p", "v6e", "h100")}
    assert 4 * hour["v5p"] == pytest.approx(16.80)
    assert 8 * hour["v6e"] == pytest.approx(21.52)
    assert 2 * hour["h100"] == pytest.approx(22.12)
