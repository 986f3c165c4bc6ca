"""Gemma 4 in JAX against transformers on the same files, float32."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support import gemma
from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import load, lora, tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.pipeline

LENGTH = 72
"""More than twice the window, so that sliding layers do slide."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


def written(root: Path, name: str) -> Path:
    """A checkpoint: `dense`, `ple`, `-text` for text-only, `-saved` for one that transformers itself saved."""
    directory = root / name
    if directory.exists():
        return directory
    variant, _, kind = name.partition("-")
    if kind == "saved":
        gemma.reference(written(root, f"{variant}-text")).save_pretrained(directory, max_shard_size="1MB")
    elif kind == "multimodal_saved":
        gemma.reference(written(root, variant)).save_pretrained(directory, max_shard_size="2MB")
    else:
        tiny.write(directory, variant=variant, multimodal=kind != "text")  # type: ignore[arg-type]
    return directory


@pytest.mark.parametrize(
    "name", ["dense", "dense-text", "dense-saved", "dense-multimodal_saved", "ple", "ple-text", "ple-saved"]
)
def test_logits_equal_transformers(name: str, root: Path) -> None:
    directory, on = written(root, name), gemma.mesh()
    ids = gemma.tokens(2, LENGTH)
    model = load.load(directory, mesh=on, param_dtype="float32", compute_dtype="float32")
    want = gemma.reference_logits(directory, ids)
    assert want.std() > 0.5
    np.testing.assert_allclose(gemma.tunix_logits(model, ids, on), want, atol=1e-3)


def test_what_transformers_saved_lacks_k_and_v_of_shared_layers(root: Path) -> None:
    index = json.loads((written(root, "ple-saved") / "model.safetensors.index.json").read_text())
    assert "model.layers.2.self_attn.k_proj.weight" in index["weight_map"]
    assert not any("layers.3.self_attn.k_" in name for name in index["weight_map"])


def test_the_tokenizer_and_the_template_load_in_transformers(root: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(written(root, "dense"))
    chat = [
        {"role": "user", "content": "What is Tunewright?"},
        {"role": "assistant", "content": "An operator."},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<bos><|turn>user\nWhat is Tunewright?<turn|>\n<|turn>model\nAn operator.<turn|>\n"
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(tiny.ASSETS / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == own
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 1, 0)


def test_the_base_is_bit_identical_after_training_steps_and_the_adapter_is_not(root: Path) -> None:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    on, ids = gemma.mesh(), jnp.asarray(gemma.tokens(2, 24))
    model = load.load(written(root, "dense"), mesh=on, param_dtype="float32", compute_dtype="float32")
    model = lora.apply(model, AdapterConfig(rank=4, alpha=8), seed=0, mesh=on)
    graph, adapter, rest = nnx.split(model, nnx.LoRAParam, ...)
    before = {load.dotted(p): np.array(v.get_value()) for p, v in nnx.to_flat_state(rest)}
    start = {p: np.array(x) for p, x in lora.flatten(lora.tree(model))}
    B, T = ids.shape
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((T, T), bool)), (B, T, T))

    @partial(jax.jit, compiler_options=gemma.QUICK)
    def step(adapter: object, state: object) -> tuple[object, object, jax.Array]:
        def loss(adapter: object) -> jax.Array:
            positions = jnp.broadcast_to(jnp.arange(T), (B, T))
            logits, _ = nnx.merge(graph, adapter, rest)(ids, positions, None, mask)
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(adapter)
        updates, state = optimizer.update(grads, state, adapter)
        return optax.apply_updates(adapter, updates), state, value

    optimizer = optax.adamw(1e-2)
    state, losses = optimizer.init(adapter), []
    for _ in range(3):
        adapter, state, value = step(adapter, state)
        losses.append(float(value))
    assert losses[2] < losses[0]
    trained = nnx.merge(graph, adapter, rest)
    for path, variable in nnx.to_flat_state(nnx.state(trained, nnx.Not(nnx.LoRAParam))):
        np.testing.assert_array_equal(variable.get_value(), before[load.dotted(path)])
    changed = {p for p, x in lora.flatten(lora.tree(trained)) if not np.array_equal(x, start[p])}
    assert changed == set(start)


SHARDED = """
import jax, numpy as np, sys
from support import gemma
from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import load, lora
directory, fsdp, tp = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ids, on = gemma.tokens(4, 40), gemma.mesh(fsdp, tp)
model = load.load(directory, mesh=on, param_dtype="float32", compute_dtype="float32")
q = model.layers[0].attn.q_einsum.w.get_value()
assert {s.data.shape for s in q.addressable_shards} == {(4 // tp, 128 // fsdp, 32)}, q.sharding
model = lora.apply(model, AdapterConfig(rank=3, alpha=3), seed=5, mesh=on)
a = dict(lora.flatten(lora.tree(model)))
up = a["layers.0.mlp.up_proj.kernel_lora_b"]
assert {s.data.shape for s in up.addressable_shards} == {(3, 256 // tp)}, up.sharding
out = a["layers.0.attn.attn_vec_einsum.w_lora_b"]
assert {s.data.shape for s in out.addressable_shards} == {(3, 128 // fsdp)}, out.sharding
one = lora.apply(load.load(directory, mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32"),
                 AdapterConfig(rank=3, alpha=3), seed=5, mesh=gemma.mesh())
for path, value in lora.flatten(lora.tree(one)):
    np.testing.assert_array_equal(a[path], value)
np.testing.assert_allclose(gemma.tunix_logits(model, ids, on), gemma.tunix_logits(one, ids, gemma.mesh()), atol=1e-4)
print("same")
"""


@pytest.mark.parametrize(("name", "fsdp", "tp"), [("dense", 4, 1), ("ple", 2, 2)])
def test_four_devices_hold_their_parts_and_compute_the_same(
    name: str, fsdp: int, tp: int, root: Path
) -> None:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = os.pathsep.join(
        str(p) for p in (Path(tiny.__file__).parents[2], Path(gemma.__file__).parents[1])
    )
    command = [sys.executable, "-c", SHARDED, str(written(root, name)), str(fsdp), str(tp)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]
