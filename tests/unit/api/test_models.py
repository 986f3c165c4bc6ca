"""The models: defaults that are right for most, and what the plan asks of them."""

from __future__ import annotations

import pytest

from support.builders import endpoint, job
from tunewright_operator import api
from tunewright_workloads.contract.accelerators import ACCELERATORS
from tunewright_workloads.contract.configs import TARGETS
from tunewright_workloads.contract.faults import UserError


def test_a_job_needs_four_fields_and_the_rest_is_right_for_most() -> None:
    spec = job().set("dataset.validation", None).build().spec
    assert spec.model.uri == "hf://google/gemma-4-31B-it"
    assert spec.model.revision == "main"
    assert (spec.dataset.max_length, spec.dataset.packing, spec.dataset.loss_on) == (2048, True, "assistant")
    assert (spec.adapter.rank, spec.adapter.alpha, spec.adapter.targets) == (16, 16.0, list(TARGETS))
    assert (spec.training.epochs, spec.training.steps, spec.training.rows) == (1.0, None, 16)
    assert spec.accelerator.provisioning.mode == "onDemand"
    assert spec.accelerator.mesh.auto
    assert (spec.output.merge, spec.output.dtype) == (True, "bfloat16")
    assert (spec.limits.retries, spec.limits.run_seconds, spec.limits.cost_usd) == (3, None, None)
    assert not spec.suspend


def test_alpha_follows_the_rank_and_epochs_the_steps() -> None:
    assert job().set("adapter.rank", 64).build().spec.adapter.alpha == 64.0
    assert job().set("adapter", {"rank": 64, "alpha": 128}).build().spec.adapter.alpha == 128.0
    assert job().set("training.steps", 10).build().spec.training.epochs is None
    assert job().set("training.epochs", 0.5).build().spec.training.epochs == 0.5


def test_whole_numbers_may_be_written_with_a_point_as_kubectl_takes_them() -> None:
    assert job().set("training.steps", 100.0).build().spec.training.steps == 100


@pytest.mark.parametrize(
    ("kind", "topology", "more", "hosts", "devices"),
    [
        ("v5p", "2x2x1", {}, 1, 4),
        ("v5p", "4x4x4", {}, 16, 64),
        ("v5p", "8x8x8", {}, 128, 512),
        ("v6e", "2x4", {}, 1, 8),
        ("v6e", "2x4", {"chipsPerHost": 4}, 2, 8),
        ("v5e", "1x1", {}, 1, 1),
        ("v7x", "2x2x1", {}, 1, 8),
        ("h100", None, {}, 1, 1),
        ("h100", None, {"count": 8}, 1, 8),
        ("cpu", None, {}, 1, 1),
    ],
)
def test_the_slice_and_its_devices(
    kind: str, topology: str | None, more: dict[str, int], hosts: int, devices: int
) -> None:
    builder = job().on(kind, topology, **more).set("training.globalBatchSize", 512)
    built = builder.set("output.uri", "pvc://claim/bot").build().spec.accelerator
    assert (built.slice.hosts, built.devices) == (hosts, devices)
    assert built.chip is ACCELERATORS[kind]


def test_every_topology_of_the_catalog_is_accepted() -> None:
    for chip in ACCELERATORS.values():
        for row in chip.slices:
            if chip.kind == "tpu":
                built = job().on(chip.name, row.topology, chipsPerHost=row.chips_per_host)
                assert built.set("training.globalBatchSize", 4096).build().spec.accelerator.slice == row


@pytest.mark.parametrize(
    ("rows", "topology", "hint"),
    [
        (7, "4x4x4", "Make globalBatchSize a multiple of 16"),
        (8, "4x4x8", "Make globalBatchSize a multiple of 32"),
        (4, "2x2x4", None),
    ],
)
def test_rows_that_the_slice_cannot_share_are_told_with_the_number(
    rows: int, topology: str, hint: str | None
) -> None:
    builder = job().on("v5p", topology).set("training.globalBatchSize", rows)
    if hint is None:
        builder.build()
        return
    with pytest.raises(UserError) as caught:
        builder.build()
    assert [fault.fix for fault in caught.value.faults] == [hint]


def test_a_micro_batch_is_what_the_mesh_must_share() -> None:
    builder = job().on("v5p", "4x4x4").set("training", {"globalBatchSize": 64, "microBatchSize": 8})
    with pytest.raises(UserError, match="Make microBatchSize a multiple of 16"):
        builder.build()
    builder.set("training.microBatchSize", 16).build()


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"fsdp": 4, "tp": 2}, "v5p has 4 devices here"),
        ({"fsdp": 4, "tp": 1}, None),
        ({"fsdp": 1, "tp": 4}, None),
        ("auto", None),
    ],
)
def test_a_mesh_is_checked_against_slice_and_model(mesh: object, message: str | None) -> None:
    builder = job().set("accelerator.mesh", mesh)
    if message is None:
        built = builder.build()
        assert built.model_dump(by_alias=True)["spec"]["accelerator"]["mesh"] == mesh
    else:
        with pytest.raises(UserError, match=message):
            builder.build()


def test_a_mesh_that_splits_the_kv_heads_too_far_is_told_with_the_limit() -> None:
    builder = job().on("v6e", "2x4", mesh={"fsdp": 1, "tp": 8})
    with pytest.raises(UserError, match="16 local and 4 global kv heads of gemma-4-31b: at most 4"):
        builder.build()


def test_a_custom_model_fits_for_all_we_know() -> None:
    built = job().set("model", {"name": "custom", "source": "gs://acme/model"}).on("v6e", "2x4").build()
    assert built.spec.model.spec is None
    assert built.spec.model.uri == "gs://acme/model"


def test_a_model_cannot_be_changed_in_place() -> None:
    with pytest.raises(Exception, match="frozen"):
        job().build().spec.suspend = True


def test_python_names_make_a_job_too() -> None:
    spec = api.FineTuneJobSpec(
        model={"name": "gemma-4-tiny"},
        dataset={"train": ["sample://faq"], "max_length": 128},
        accelerator={"type": "cpu"},
        output={"uri": "file:///tmp/out"},
    )
    assert spec.dataset.max_length == 128


def test_building_a_resource_in_python_asks_the_rules_too() -> None:
    data = job().set("training", {"epochs": 1, "steps": 2}).data()
    with pytest.raises(Exception, match=r"spec\.training\.epochs: cannot stand beside steps"):
        api.FineTuneJob.model_validate(data)


def test_an_endpoint_needs_two_fields() -> None:
    built = endpoint().build()
    assert built.served_name == "support-bot"
    assert endpoint().set("model.servedName", "acme/bot").build().served_name == "acme/bot"
    assert (built.spec.replicas, built.spec.rollout.strategy, built.spec.rollout.gate) == (
        1,
        "recreate",
        True,
    )
    assert built.spec.drain_seconds == 120
    assert not built.spec.small
    assert endpoint().on("cpu").build().spec.small
    assert not endpoint().on("cpu").set("engine.name", "vllm").build().spec.small
