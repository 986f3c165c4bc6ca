import copy
from pathlib import Path
from typing import Any

import pytest

from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import architecture, layout, tiny


def changed(variant: str, change: dict[str, Any], multimodal: bool = True) -> dict[str, Any]:
    config = copy.deepcopy(tiny.config(variant, multimodal))
    (config["text_config"] if multimodal else config).update(change)
    return config


@pytest.mark.parametrize("variant", ["dense", "ple"])
def test_both_class_names_give_the_same_decoder(variant: str) -> None:
    nested = architecture.parse(tiny.config(variant, True))
    flat = architecture.parse(tiny.config(variant, False))
    assert nested.multimodal and not flat.multimodal
    assert {**vars(nested), "class_name": ""} == {**vars(flat), "class_name": ""}


def test_kv_shared_layers_attend_to_the_last_unshared_layer_of_their_kind() -> None:
    arch = architecture.parse(tiny.config("ple", False))
    assert [arch.origin(i) for i in range(6)] == [0, 1, 2, 1, 1, 2]
    assert [arch.width(i) for i in range(6)] == [256] * 3 + [512] * 3


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ({"enable_moe_block": True, "num_experts": 8}, "enable_moe_block", "router"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers", "integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "at least 1"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types", "must be 4"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "layer_types", "end in full"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "must divide num_attention_heads, 4"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps", "1e-06"),
        ({"attention_bias": True}, "attention_bias", "false"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention", "causal"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings", "true"),
        ({"hidden_activation": "silu"}, "hidden_activation", "gelu_pytorch_tanh"),
        ({"head_dim": 33}, "head_dim", "even"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers", "less than"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers", "leaves no layer of each kind"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters", "proportional"),
        ({"final_logit_softcapping": -1}, "final_logit_softcapping", "positive"),
        ({"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 8}, "vocab_size_per_layer_input", "1024"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_with_the_field_and_the_reason(
    change: dict[str, Any], place: str, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        architecture.parse(changed("dense", change))
    assert any(f"text_config.{place}" in fault.place and says in str(fault) for fault in caught.value.faults)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        architecture.parse(changed("dense", {"attention_bias": True, "rms_norm_eps": 1, "hidden_size": 0}))
    assert len(caught.value.faults) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[]", "JSON object"), ('{"architectures": ["LlamaForCausalLM"]}', "Gemma4ForCausalLM")],
)  # fmt: skip
def test_another_models_directory_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=says):
        architecture.read(tmp_path)


def test_a_directory_without_a_configuration_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        architecture.read(tmp_path)


@pytest.mark.parametrize(
    ("variant", "mesh", "says"),
    [
        ("dense", {"fsdp": 1, "tp": 2}, "mesh.tp: must divide global key/value heads, 1"),
        ("ple", {"fsdp": 1, "tp": 4}, "mesh.tp: must divide local key/value heads, 2"),
        ("dense", {"fsdp": 3, "tp": 1}, "mesh.fsdp: must divide the model's width, 128"),
        ("ple", {"fsdp": 32, "tp": 1}, "mesh.fsdp: must divide the per-layer inputs' width, 16"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused_with_axis_and_numbers(
    variant: str, mesh: dict[str, int], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        layout.check(architecture.parse(tiny.config(variant, False)), mesh)
    assert says in caught.value.text() and str(max(mesh.values())) in caught.value.text()


def test_a_mesh_that_divides_is_accepted() -> None:
    layout.check(architecture.parse(tiny.config("dense", False)), {"fsdp": 8, "tp": 1})
    layout.check(architecture.parse(tiny.config("ple", False)), {"fsdp": 4, "tp": 2})
