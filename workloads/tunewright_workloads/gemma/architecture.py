"""What a Gemma 4 checkpoint is, read from its config.json, or a refusal that says why.

The text decoder only: vision and audio towers of multimodal checkpoints are not built, their
tensors are carried through a merge unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright_workloads.contract.faults import Fault, UserError, show

CONFIG = "config.json"
CLASSES = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
MOE_REASON = (
    "mixture-of-experts checkpoints are refused: the router of the pinned Tunix is wrong "
    "(its logits differ from the reference by 3.3)"
)


@dataclass(frozen=True)
class Architecture:
    """The text decoder of one checkpoint. Sizes are in elements, the window in tokens."""

    class_name: str
    layers: int
    globals: tuple[bool, ...]
    embed: int
    hidden: int
    heads: int
    local_kv_heads: int
    global_kv_heads: int
    head_dim: int
    global_head_dim: int
    window: int
    vocab: int
    k_eq_v: bool
    kv_shared_layers: int = 0
    wide: bool = False
    ple: int = 0
    softcap: float | None = 30.0
    local_theta: float = 10_000.0
    global_theta: float = 1_000_000.0
    local_factor: float = 1.0
    global_factor: float = 1.0
    global_proportion: float = 0.25
    max_positions: int = 131_072
    dtype: str = "bfloat16"

    @property
    def multimodal(self) -> bool:
        """Whether the checkpoint has the multimodal class name (text below `model.language_model.`)."""
        return self.class_name == CLASSES[0]

    @property
    def unshared(self) -> int:
        """Number of leading layers that compute K and V of their own."""
        return self.layers - self.kv_shared_layers

    def is_global(self, layer: int) -> bool:
        return self.globals[layer]

    def is_shared(self, layer: int) -> bool:
        """Whether the layer reuses an earlier layer's K and V."""
        return layer >= self.unshared

    def origin(self, layer: int) -> int:
        """The layer whose K and V this one attends to: itself, or the last unshared one of its kind."""
        if not self.is_shared(layer):
            return layer
        return max(i for i in range(self.unshared) if self.globals[i] == self.globals[layer])

    def k_is_v(self, layer: int) -> bool:
        """Whether one projection serves as K and V (global layers of some checkpoints)."""
        return self.k_eq_v and self.globals[layer]

    def dim(self, layer: int) -> int:
        """Size of one head."""
        return self.global_head_dim if self.globals[layer] else self.head_dim

    def kv_heads(self, layer: int) -> int:
        return self.global_kv_heads if self.globals[layer] else self.local_kv_heads

    def width(self, layer: int) -> int:
        """F of the layer's MLP; kv-shared layers may be twice as wide."""
        return self.hidden * 2 if self.wide and self.is_shared(layer) else self.hidden


def read(directory: Path | str) -> Architecture:
    """The architecture of the checkpoint in `directory`. Raises UserError with every reason against it."""
    path = Path(directory) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            Fault(
                str(path),
                f"cannot be read: {error.strerror}",
                None,
                "A model directory holds config.json beside its safetensors.",
            )
        ) from None
    except ValueError as error:
        raise UserError(Fault(str(path), f"is not JSON: {error}")) from None
    return parse(config, str(path))


def parse(config: Any, place: str = CONFIG) -> Architecture:
    """An architecture from the content of a config.json. Raises UserError with every reason against it."""
    if not isinstance(config, dict):
        raise UserError(Fault(place, "must be a JSON object", show(config)))
    classes = config.get("architectures") or []
    name = classes[0] if isinstance(classes, list) and classes else None
    if name not in CLASSES:
        raise UserError(
            Fault(
                f"{place}: architectures",
                f"must be one of {', '.join(CLASSES)}",
                show(classes),
                "Only Gemma 4 checkpoints can be used.",
            )
        )
    nested = name == CLASSES[0]
    text = config.get("text_config") if nested else config
    if not isinstance(text, dict):
        raise UserError(Fault(f"{place}: text_config", "is required", show(text)))
    return _Reader(text, f"{place}: text_config." if nested else f"{place}: ").architecture(name, config)


class _Reader:
    """Takes fields out of a text config and collects what is wrong with them."""

    def __init__(self, text: dict[str, Any], place: str) -> None:
        self.text, self.place = text, place
        self.faults: list[Fault] = []

    def refuse(self, key: str, rule: str, fix: str | None = None) -> None:
        self.faults.append(Fault(self.place + key, rule, show(self.text.get(key)), fix))

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.text.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(key, f"must be an integer of at least {least}")
            return max(least, 1)
        return value

    def must(self, key: str, allowed: tuple[Any, ...], rule: str) -> None:
        if self.text.get(key) not in allowed:
            self.refuse(key, rule)

    def rope(self, kind: str, allowed: tuple[str, ...], theta: float) -> dict[str, float]:
        every = self.text.get("rope_parameters") or {}
        table = every.get(kind) if isinstance(every, dict) else None
        table = table if isinstance(table, dict) else {}
        if table.get("rope_type", "default") not in allowed:
            self.refuse("rope_parameters", f"{kind}.rope_type must be one of {', '.join(allowed)}")
        result = {
            "theta": table.get("rope_theta", theta),
            "factor": table.get("factor", 1.0),
            "proportion": table.get("partial_rotary_factor", 0.25 if kind == "full_attention" else 1.0),
        }
        if any(isinstance(v, bool) or not isinstance(v, (int, float)) or v <= 0 for v in result.values()):
            self.refuse("rope_parameters", f"the numbers of {kind} must be positive")
            return {"theta": theta, "factor": 1.0, "proportion": 1.0}
        if result["factor"] < 1:
            self.refuse("rope_parameters", f"{kind}.factor must be at least 1")
        if kind == "sliding_attention" and result["proportion"] != 1.0:
            self.refuse("rope_parameters", "sliding_attention must rotate every dimension")
        return {key: float(value) for key, value in result.items()}

    def architecture(self, name: str, config: dict[str, Any]) -> Architecture:
        text = self.text
        if text.get("enable_moe_block"):
            self.refuse("enable_moe_block", MOE_REASON, "Use a dense Gemma 4, for example gemma-4-31b.")
        if config.get("quantization_config"):
            self.refuse("quantization_config", "quantized checkpoints cannot be trained or merged")
        layers = self.integer("num_hidden_layers")
        types = text.get("layer_types")
        if types is None:
            types = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)]
        known = ("sliding_attention", "full_attention")
        if not isinstance(types, list) or len(types) != layers or any(t not in known for t in types):
            self.refuse("layer_types", f"must be {layers} of {' and '.join(known)}")
            types = ["full_attention"] * layers
        if types[-1] != "full_attention":
            self.refuse("layer_types", "must end in full_attention")
        is_global = tuple(t == "full_attention" for t in types)
        heads = self.integer("num_attention_heads", 8)
        local = self.integer("num_key_value_heads", 4)
        k_eq_v = bool(text.get("attention_k_eq_v"))
        wide = self.integer("num_global_key_value_heads", local) if k_eq_v else local
        for key, value in (("num_key_value_heads", local), ("num_global_key_value_heads", wide)):
            if heads % value:
                self.refuse(key, f"must divide num_attention_heads, {heads}")
        shared = self.integer("num_kv_shared_layers", 0, 0)
        if shared >= layers:
            self.refuse("num_kv_shared_layers", f"must be less than num_hidden_layers, {layers}")
            shared = 0
        missing = {kind for kind in is_global[layers - shared :] if kind not in is_global[: layers - shared]}
        if missing:
            self.refuse(
                "num_kv_shared_layers", "leaves no layer of each kind whose K and V the others can share"
            )
        ple = self.integer("hidden_size_per_layer_input", 256, 0)
        vocab = self.integer("vocab_size", 262_144)
        if ple and self.integer("vocab_size_per_layer_input", 262_144) != vocab:
            self.refuse("vocab_size_per_layer_input", f"must equal vocab_size, {vocab}")
        self.must("rms_norm_eps", (None, 1e-6), "must be 1e-06")
        self.must("attention_bias", (None, False), "must be false")
        self.must("hidden_activation", (None, "gelu_pytorch_tanh"), "must be gelu_pytorch_tanh")
        self.must("use_bidirectional_attention", (None, "vision"), "must not be 'all': text is causal")
        self.must("tie_word_embeddings", (None, True), "must be true")
        softcap = text.get("final_logit_softcapping")
        if softcap is not None and (not isinstance(softcap, (int, float)) or softcap <= 0):
            self.refuse("final_logit_softcapping", "must be null or positive")
            softcap = None
        near = self.rope("sliding_attention", ("default",), 10_000.0)
        far = self.rope("full_attention", ("proportional",), 1_000_000.0)
        result = Architecture(
            class_name=name,
            layers=layers,
            globals=is_global,
            embed=self.integer("hidden_size", 2304),
            hidden=self.integer("intermediate_size", 9216),
            heads=heads,
            local_kv_heads=local,
            global_kv_heads=wide,
            head_dim=self.integer("head_dim", 256),
            global_head_dim=self.integer("global_head_dim", 512),
            window=self.integer("sliding_window", 512),
            vocab=vocab,
            k_eq_v=k_eq_v,
            kv_shared_layers=shared,
            wide=bool(text.get("use_double_wide_mlp")),
            ple=ple,
            softcap=None if softcap is None else float(softcap),
            local_theta=near["theta"],
            global_theta=far["theta"],
            local_factor=near["factor"],
            global_factor=far["factor"],
            global_proportion=far["proportion"],
            max_positions=self.integer("max_position_embeddings", 131_072),
            dtype=str(text.get("dtype") or config.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        )
        for key, size in (("head_dim", result.head_dim), ("global_head_dim", result.global_head_dim)):
            if size % 2:
                self.refuse(key, "must be even")
        if self.faults:
            raise UserError(self.faults)
        return result
