from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright_workloads.contract import configs
from tunewright_workloads.contract.faults import Fault, UserError, nearest, show


def good() -> dict:
    return {
        "job": "team/faq",
        "model": {"name": "gemma-4-tiny", "source": "sample://gemma-4-tiny"},
        "dataset": {"train": ["sample://faq"], "maxLength": 128},
        "adapter": {"rank": 8, "alpha": 16},
        "training": {"steps": 10, "globalBatchSize": 8, "learningRate": 1e-3},
        "mesh": {"accelerator": "cpu"},
        "output": "file:///out",
        "work": "/var/tunewright",
    }


def test_a_config_survives_its_own_text(tmp_path):
    config = configs.parse(configs.TrainConfig, good(), "train.json")
    (tmp_path / "train.json").write_text(config.text())
    assert configs.load(configs.TrainConfig, tmp_path / "train.json") == config


def test_all_faults_are_told_at_once_with_their_paths():
    data = good()
    data["adapter"]["rank"] = 0
    data["training"]["epochs"] = 1
    data["output"] = "hf://a/b"
    data["datset"] = {}
    with pytest.raises(UserError) as caught:
        configs.parse(configs.TrainConfig, data, "train.json")
    text = caught.value.text()
    assert "train.json: adapter.rank: " in text
    assert "train.json: training: exactly one of epochs and steps" in text
    assert "train.json: output: only gs://, pvc://, file:// can be written to" in text
    assert "train.json: datset: is not a field. Did you mean dataset?" in text


def test_an_unknown_key_deep_inside_gets_the_nearest_of_its_own_level():
    data = good()
    data["training"]["learningrate"] = 1e-3
    with pytest.raises(UserError, match="Did you mean learningRate"):
        configs.parse(configs.TrainConfig, data, "c")


@pytest.mark.parametrize(("content", "says"), [("{", "is not JSON"), (None, "cannot be read")])
def test_a_file_that_is_no_config_is_a_user_error(tmp_path, content, says):
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=says):
        configs.load(configs.TrainConfig, path)


def leaves(data, path=()):
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


@given(
    st.sampled_from(list(leaves(good()))),
    st.none() | st.text(max_size=5) | st.integers() | st.lists(st.integers()),
)
def test_any_value_anywhere_is_accepted_or_a_user_error(path, value):
    data = json.loads(json.dumps(good()))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    try:
        configs.parse(configs.TrainConfig, data, "c")
    except UserError as error:
        assert error.faults


def test_a_fault_reads_as_a_sentence():
    assert (
        str(Fault("spec.x", "must be positive", "-1", "Write 1."))
        == "spec.x: must be positive (got -1). Write 1."
    )
    assert str(Fault("spec.x", "is required")) == "spec.x: is required"


@pytest.mark.parametrize(
    ("name", "meant"), [("learning_rate", "learningRate"), ("epoch", "epochs"), ("zzzz", None)]
)
def test_the_nearest_name_is_what_was_meant(name, meant):
    assert nearest(name, ["learningRate", "epochs"]) == meant


def test_a_long_value_is_shown_short():
    assert len(show("x" * 500)) == 80
