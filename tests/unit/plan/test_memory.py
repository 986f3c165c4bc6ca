"""The lower bound of a training step's memory, against what was compiled and against its own parts."""

from __future__ import annotations

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import memory
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.models import MODELS

GIB = 2**30
LARGE = MODELS["gemma-4-31b"]


def compiled(**training):
    """The step that was compiled for v5p 2x2x1: four rows of 6,144 tokens, rank 64."""
    return specs.job(
        {"spec.dataset.maxLength": 6144},
        adapter={"rank": 64},
        training={"globalBatchSize": 4, **training},
    ).spec


@pytest.mark.parametrize(
    ("remat", "arguments", "temporaries"),
    [("decoder", 15.9, 11.9), ("none", 15.9, 71.7)],  # GiB, by the TPU compiler
)
def test_the_bound_is_below_what_the_compiler_needs_and_not_far(remat, arguments, temporaries):
    found = memory.need(compiled(remat=remat), LARGE, 4, 1)
    assert found.base + found.adapter == pytest.approx(arguments * GIB, rel=0.05)
    assert 0.5 * temporaries * GIB < found.saved + found.work < temporaries * GIB


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"training": {"globalBatchSize": 256, "microBatchSize": 128}}, "spec.training.microBatchSize: 64"),
        ({"training": {"globalBatchSize": 4, "remat": "none"}, "dataset": {"train": ["gs://acme/b"], "maxLength": 16384}},
         "spec.training.remat: auto"),
        ({"accelerator": {"type": "v6e", "topology": "1x1"}}, "spec.accelerator.topology"),
        ({"accelerator": {"type": "v6e", "topology": "2x2"}, "training": {"globalBatchSize": 4},
          "dataset": {"train": ["gs://acme/b"], "maxLength": 24576}},
         "spec.dataset.maxLength"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_fit_is_refused_with_its_numbers_and_a_way_out(changes, what):
    job = specs.job({"spec.dataset.maxLength": 6144}, **changes)
    with pytest.raises(UserError) as caught:
        plan.job(job)
    (fault,) = caught.value.faults
    assert fault.place == "spec.accelerator"
    assert "GiB a device: base" in fault.rule
    assert what in (fault.fix or "")


def test_the_way_out_that_is_named_is_one():
    job = {"spec.dataset.maxLength": 6144, "spec.training": {"globalBatchSize": 256, "microBatchSize": 128}}
    with pytest.raises(UserError):
        plan.job(specs.job(job))
    plan.job(specs.job(job | {"spec.training": {"globalBatchSize": 256, "microBatchSize": 16}}))


@pytest.mark.parametrize(("bits", "bytes_"), [("int8", 1.0625), ("nf4", 0.5625)])
def test_a_quantized_base_takes_less_but_for_its_embedding(bits, bytes_):
    whole = memory.need(compiled(), LARGE, 4, 1)
    spec = specs.job(
        {"spec.dataset.maxLength": 6144},
        adapter={"rank": 64, "quantizeBase": bits},
        training={"globalBatchSize": 4},
    ).spec
    small = memory.need(spec, LARGE, 4, 1)
    table = LARGE.vocab * LARGE.embed
    assert small.base == pytest.approx(((LARGE.params - table) * bytes_ + table * 2) / 4)
    assert (small.adapter, small.saved, small.work) == (whole.adapter, whole.saved, whole.work)


def test_a_quantized_base_is_a_way_out_where_it_is_one():
    """61 GB of weights on a chip of 32: int8 is too much as well, nf4 is not."""
    body = {"spec.dataset.maxLength": 1024, "spec.training": {"globalBatchSize": 1, "remat": "decoder"},
            "spec.accelerator": {"type": "v6e", "topology": "1x1"}}  # fmt: skip
    with pytest.raises(UserError) as caught:
        plan.job(specs.job(body))
    assert "spec.adapter.quantizeBase: nf4" in (caught.value.faults[0].fix or "")
    plan.job(specs.job(body | {"spec.adapter.quantizeBase": "nf4"}))


def test_a_chip_of_two_devices_has_half_its_memory_for_each():
    spec = specs.job(accelerator={"type": "v7x", "topology": "2x2x1"}).spec
    assert memory.need(spec, LARGE, 8, 1).have == pytest.approx(96e9)


def test_nothing_is_said_of_a_cpu_and_custom_models_are_said_to_be_unknown():
    assert memory.check(specs.job(specs.TINY).spec) is None
    custom = specs.job({"spec.model": {"name": "custom", "source": "gs://acme/base"}})
    assert "not checked" in (memory.check(custom.spec) or "")
