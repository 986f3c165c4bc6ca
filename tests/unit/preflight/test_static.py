"""What arithmetic says of a step, and how `python -m tunewright_workloads.preflight` says it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunewright_workloads.contract import models
from tunewright_workloads.contract.configs import PreflightConfig, parse
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import names
from tunewright_workloads.preflight import __main__ as command
from tunewright_workloads.preflight import compiler, shapes, static


def data(**more: Any) -> dict[str, Any]:
    """The paper's model on its slice, packed; `training__remat=...` changes one field."""
    made: dict[str, Any] = {
        "job": "default/verilog",
        "model": {"name": "gemma-4-31b", "source": "hf://google/gemma-4-31B-it"},
        "adapter": {"rank": 64, "alpha": 64},
        "training": {"steps": 10, "globalBatchSize": 4, "learningRate": 1e-4},
        "dataset": {"train": ["gs://bucket/rows.jsonl"], "maxLength": 5120},
        "mesh": {"accelerator": "v5p", "topology": "2x2x1"},
    }
    for path, value in more.items():
        part, _, field = path.partition("__")
        made[part] = {**made[part], field: value} if field else value
    return made


def config(**more: Any) -> PreflightConfig:
    return parse(PreflightConfig, data(**more), "test")


def test_the_31b_keeps_everything_on_the_papers_slice_and_fits():
    found = static.check(config())
    assert (found.devices, found.fsdp, found.tp, found.kept) == (4, 4, 1, static.KEPT["none"])
    assert found.fits
    assert found.resident + found.temporaries < 0.92 * found.have
    # The compiler says 18.6 GiB of arguments; at 6144 tokens it says 74.5 GiB of temporaries.
    assert found.resident / static.GIB == pytest.approx(18.6, rel=0.02)
    assert found.temporaries / static.GIB == pytest.approx(74.5 * 5120 / 6144, rel=0.03)


def test_longer_rows_keep_less_until_nothing_fits():
    kept = [static.check(config(dataset__maxLength=n)) for n in (5120, 8192, 65536, 131072)]
    assert [len(c.kept) for c in kept] == sorted((len(c.kept) for c in kept), reverse=True)
    assert len(kept[0].kept) > len(kept[1].kept)
    with pytest.raises(UserError, match=r"GiB of base, adapter and optimizer and about .*fsdp 4, tp 1"):
        static.check(config(dataset__maxLength=262144)).refuse()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mesh__tp": 3}, "mesh.tp: must divide the number of devices, 4"),
        ({"mesh__topology": "2x2x2", "mesh__tp": 8, "training__globalBatchSize": 8}, "global key/value heads, 4"),
        ({"training__globalBatchSize": 6, "mesh__fsdp": 4, "mesh__tp": 1}, "mesh.fsdp: must divide the rows computed at a time, 6"),
        ({"training__microBatchSize": 3}, "training.microBatchSize: must divide globalBatchSize, 4"),
        ({"dataset__maxLength": 3000}, "dataset.maxLength: must be a multiple of 128 on TPUs: the attention kernel works on blocks of as many tokens (got 3000). Use 3072."),
        ({"model__name": "gemma-4-26b-a4b"}, "router"),
        ({"model__name": "custom"}, "model.source: is not read beforehand"),
        ({"mesh__topology": "2x2x9"}, "2x2x9"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_with_its_numbers(more, says):
    with pytest.raises(UserError) as error:
        static.check(config(**more))
    assert says in error.value.text()


@pytest.mark.parametrize("name", [m.name for m in models.MODELS.values() if m.trainable])
def test_the_catalogs_shapes_make_the_parameters_that_the_catalog_counts(name):
    arch = shapes.architecture(name)
    assert shapes.parameters(arch) == pytest.approx(models.model(name).params, rel=0.05)
    assert names.projections(arch)


@pytest.mark.parametrize("layers", [0, 5, 66])
def test_a_part_of_a_model_is_whole_patterns(layers):
    with pytest.raises(UserError, match="must be a multiple of 6 up to 60"):
        shapes.architecture("gemma-4-31b", layers)
    assert shapes.architecture("gemma-4-31b", 12).globals == (False, False, False, False, False, True) * 2


def test_shared_keys_and_values_are_not_cut():
    with pytest.raises(UserError, match="must be all 35"):
        shapes.architecture("gemma-4-e2b", 5)


def run(tmp_path, capsys, *args: str, **more: Any) -> tuple[int, dict[str, Any], str]:
    path = tmp_path / "preflight.json"
    path.write_text(json.dumps(data(**more)))
    code = command.main(["--config", str(path), *args])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_command_prints_one_document_and_ends_in_0(tmp_path, capsys):
    code, found, err = run(tmp_path, capsys, "--no-compile")
    assert code == 0 and not err
    assert found["fits"] and found["mesh"] == {"devices": 4, "fsdp": 4, "tp": 1}
    assert found["compiled"] is None and found["notCompiled"] == "--no-compile"


def test_the_command_ends_in_2_with_the_numbers_when_it_does_not_fit(tmp_path, capsys):
    code, found, err = run(tmp_path, capsys, dataset__maxLength=262144)
    assert code == 2 and not found["fits"] and found["temporariesGib"] > found["deviceGib"]
    assert f"{found['deviceGib']:.1f} GiB" in err and "smaller dataset.maxLength" in err


def test_the_command_ends_in_2_for_a_mesh_that_does_not_divide(tmp_path, capsys):
    code, found, err = run(tmp_path, capsys, mesh__tp=3)
    assert code == 2 and found == {"fits": False, "faults": [err.strip()]}


def test_without_the_compiler_the_command_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compiler, "available", lambda: False)
    code, found, _ = run(tmp_path, capsys)
    assert code == 0 and "libtpu" in found["notCompiled"]


def test_a_laptop_is_checked_for_its_mesh_only(tmp_path, capsys):
    mesh = {"accelerator": "cpu"}
    model = {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"}
    code, found, _ = run(tmp_path, capsys, mesh=mesh, model=model, dataset__maxLength=100)
    assert code == 0 and found["fits"] and found["deviceGib"] is None and "cpu" in found["notCompiled"]
