"""A tiny Gemma 4 in Hugging Face format that learns in a minute on a laptop.

    python -m tunewright_workloads.gemma.tiny DIRECTORY [--variant ple] [--text-only] [--seed N]

Small, but the real architecture: sliding and global layers, K = V in the global one (`dense`), or
per-layer inputs and layers that share K and V (`ple`, as E2B and E4B), soft-cap, tied embeddings,
sharded safetensors, Gemma 4's special tokens and chat behaviour. The weights are random and the
same on every machine: they come from the raw bits of Philox by integer arithmetic, not from a
library's normal distribution.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tunewright_workloads import samples
from tunewright_workloads.gemma import architecture, names

Variant = Literal["dense", "ple"]
ASSETS = Path(samples.__file__).parent / "tiny"
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
SHARD = 1_000_000
"""Most bytes in one safetensors file: small, so that there are several."""

VERSION = "5.12.1"
PAD, EOS, BOS, TOOL_RESPONSE, TURN_END = 0, 1, 2, 9, 16
_IMAGE, _AUDIO = {"boi": 17, "image": 18, "eoi": 19}, {"boa": 20, "audio": 21, "eoa": 22}
_VIDEO = 23


def text_config(variant: Variant, dtype: str = "float32", groups: int = 1) -> dict[str, Any]:
    """The text decoder's configuration, field for field as transformers writes it."""
    dense = variant == "dense"
    layers = (4 if dense else 6) * groups
    every = 4 if dense else 3
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": dense,
        "bos_token_id": BOS,
        "dtype": dtype,
        "enable_moe_block": False,
        "eos_token_id": EOS,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 64,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 128,
        "hidden_size_per_layer_input": 0 if dense else 16,
        "initializer_range": 0.02,
        "intermediate_size": 256,
        "layer_types": [
            "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)
        ],
        "max_position_embeddings": 2048,
        "model_type": "gemma4_text",
        "moe_intermediate_size": None,
        "num_attention_heads": 4,
        "num_experts": None,
        "num_global_key_value_heads": 1 if dense else None,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0 if dense else 3 * groups,
        "pad_token_id": PAD,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 32,
        "tie_word_embeddings": True,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_cache": True,
        "use_double_wide_mlp": not dense,
        "vocab_size": 1024,
        "vocab_size_per_layer_input": 1024,
    }


_VISION = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": None,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 131072,
    "model_type": "gemma4_vision",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 64,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    "standardize": True,
    "use_clipped_linears": False,
}


def config(variant: Variant, multimodal: bool, dtype: str = "float32", groups: int = 1) -> dict[str, Any]:
    """The whole config.json."""
    text = text_config(variant, dtype, groups)
    if not multimodal:
        return {**text, "transformers_version": VERSION}
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": None,
        "audio_token_id": _AUDIO["audio"],
        "boa_token_id": _AUDIO["boa"],
        "boi_token_id": _IMAGE["boi"],
        "dtype": dtype,
        "eoa_token_index": _AUDIO["eoa"],
        "eoi_token_id": _IMAGE["eoi"],
        "eos_token_id": [EOS, TURN_END],
        "image_token_id": _IMAGE["image"],
        "initializer_range": 0.02,
        "model_type": "gemma4",
        "text_config": text,
        "tie_word_embeddings": True,
        "transformers_version": VERSION,
        "video_token_id": _VIDEO,
        "vision_config": _VISION,
    }


def vision_shapes(embed: int) -> dict[str, tuple[int, ...]]:
    """The vision tower's tensors by full name: never read here, carried through a merge."""
    d, f, h = 32, 64, 16
    block = {
        **dict.fromkeys(
            (
                "input_layernorm.weight",
                "post_attention_layernorm.weight",
                "post_feedforward_layernorm.weight",
                "pre_feedforward_layernorm.weight",
            ),
            (d,),
        ),
        **{f"mlp.{name}.linear.weight": (f, d) for name in ("gate_proj", "up_proj")},
        "mlp.down_proj.linear.weight": (d, f),
        **{f"self_attn.{name}_proj.linear.weight": (d, d) for name in "qkvo"},
        **{f"self_attn.{name}_norm.weight": (h,) for name in "qk"},
    }
    return {
        "model.embed_vision.embedding_projection.weight": (embed, d),
        **{f"model.vision_tower.encoder.layers.0.{name}": shape for name, shape in block.items()},
        "model.vision_tower.patch_embedder.input_proj.weight": (d, 3 * 4 * 4),
        "model.vision_tower.patch_embedder.position_embedding_table": (2, 64, d),
        "model.vision_tower.std_bias": (d,),
        "model.vision_tower.std_scale": (d,),
    }


def normal(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """f32 of mean 0 and variance 1, nearly normal: the sum of four 16-bit uniforms, exact on any machine."""
    key = np.frombuffer(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "<u8")
    raw = np.random.Philox(key=key).random_raw(math.prod(shape))
    total = (
        np.stack([(raw >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)]).sum(0).astype(np.int64)
    )
    centred = 2 * total - 4 * 0xFFFF
    # Variance of 2 * (four uniforms on 0..65535): 16 * (65536^2 - 1) / 12.
    scale = np.float32(1.0 / math.sqrt(16 * (65536**2 - 1) / 12))
    return (centred.astype(np.float32) * scale).reshape(shape)


def values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A tensor's initial values, f32. `name` is without the text prefix for text tensors.

    Not the usual initialisation: a frozen random base learns nothing from adapters when its tied
    head is small (that bounds the logits) or its kernels are zero (that leaves the MLP dead). Here
    activations keep unit variance and the final norm sharpens the logits.
    """
    last = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if last in ("q_norm", "k_norm") and not name.startswith("model."):
        return np.full(shape, shape[0] ** -0.25, np.float32)
    if name == "norm.weight":
        return np.full(shape, 4.0, np.float32)
    if len(shape) == 1:
        return np.full(shape, 0.0 if last == "std_bias" else 1.0, np.float32)
    std = shape[-1] ** -0.5
    if name == "embed_tokens_per_layer.weight":
        std = 16**-0.5
    if name == "per_layer_model_projection.weight":
        std = 1.0
    return normal(name, shape, seed) * np.float32(std)


def weights(
    variant: Variant, seed: int, multimodal: bool, dtype: str = "float32", groups: int = 1
) -> dict[str, np.ndarray]:
    """Every tensor of the checkpoint by full name, text first, in the model's order."""
    arch = architecture.parse(config(variant, multimodal, dtype, groups))
    prefix = "model.language_model." if multimodal else "model."
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    result = {
        prefix + name: values(name, shape, seed).astype(kind) for name, shape in names.tensors(arch).items()
    }
    if multimodal:
        for name, shape in vision_shapes(arch.embed).items():
            result[name] = values(name, shape, seed).astype(kind)
    return result


def write(
    directory: Path,
    *,
    variant: Variant = "dense",
    seed: int = 0,
    multimodal: bool = True,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD,
    groups: int = 1,
) -> None:
    """Writes the checkpoint into `directory` (made if it is not there); same bytes for the same arguments.

    groups: how often the pattern of layers repeats (4 layers each, 6 for `ple`).

    config.json comes last: a directory without it is an unfinished one.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / architecture.CONFIG).unlink(missing_ok=True)
    shards: list[dict[str, np.ndarray]] = [{}]
    tensors = weights(variant, seed, multimodal, dtype, groups)
    for name, value in tensors.items():
        held = sum(other.nbytes for other in shards[-1].values())
        if shards[-1] and held + value.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = value
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    index = {
        "metadata": {
            "total_parameters": sum(value.size for value in tensors.values()),
            "total_size": sum(value.nbytes for value in tensors.values()),
        },
        "weight_map": dict(sorted(where.items())),
    }
    _json(directory / "model.safetensors.index.json", index)
    _json(
        directory / "generation_config.json",
        {
            "bos_token_id": BOS,
            "do_sample": True,
            "eos_token_id": [EOS, TURN_END, TOOL_RESPONSE],
            "pad_token_id": PAD,
            "temperature": 1.0,
            "top_k": 64,
            "top_p": 0.95,
            "transformers_version": VERSION,
        },
    )
    for name in COPIED:
        shutil.copyfile(ASSETS / name, directory / name)
    _json(directory / architecture.CONFIG, config(variant, multimodal, dtype, groups))


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tunewright_workloads.gemma.tiny", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", choices=("dense", "ple"), default="dense")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text-only", action="store_true", help="Gemma4ForCausalLM, weights below `model.`")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args(arguments)
    write(
        given.directory,
        variant=given.variant,
        seed=given.seed,
        multimodal=not given.text_only,
        dtype=given.dtype,
    )


if __name__ == "__main__":
    main()
