"""The training program against Tunix's plain modules with Qwix's adapters, float32, packed rows."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import gemma
from tunewright_workloads.contract.configs import TARGETS, AdapterConfig
from tunewright_workloads.gemma import attention, load, lora, program, quantize, stages, tiny

pytestmark = pytest.mark.pipeline

ADAPTER = AdapterConfig(rank=4, alpha=6)
jit = partial(jax.jit, compiler_options=gemma.QUICK)
BATCH = gemma.packed(2, 100)


class Case:
    """A checkpoint with two groups of layers, an adapter that is not zero, and Tunix's answer."""

    def __init__(self, directory: Path, variant: Any) -> None:
        tiny.write(directory, variant=variant, groups=2)
        on = gemma.mesh()
        model = load.load(directory, mesh=on, param_dtype="float32", compute_dtype="float32")
        model = lora.apply(model, ADAPTER, seed=3, mesh=on)
        draw = np.random.default_rng(0)
        self.tree = jax.tree.map(
            lambda x: x + draw.normal(size=x.shape).astype(np.float32) * 0.02, lora.tree(model)
        )
        self.loss, slopes = gemma.plain_loss(model, BATCH)(self.tree)
        self.slopes = dict(lora.flatten(slopes))
        self.arch, self.base = stages.load(directory, mesh=on, dtype="float32")
        self.directory = directory
        self.programs: dict[Any, Any] = {}

    def run(self, batch: Any = BATCH, **options: Any) -> tuple[float, dict[str, Any]]:
        """Loss and gradients of the program."""
        on = gemma.mesh()
        settings = program.Settings.of(self.arch, ADAPTER, mesh=on, compute_dtype="float32", **options)
        # One compiled program for one set of options and block size.
        key = (str(options), attention.blocks.__defaults__)
        if key not in self.programs:
            self.programs[key] = jit(
                jax.value_and_grad(lambda a, b, rows: program.loss(a, b, rows, settings)[0])
            )
        value, slopes = self.programs[key](stages.stack(self.arch, self.tree, on), self.base, batch)
        return float(value), dict(lora.flatten(stages.unstack(self.arch, slopes)))

    def distance(self, slopes: dict[str, Any]) -> float:
        """The largest difference of any gradient of the mean loss."""
        assert set(slopes) == set(self.slopes)
        count = BATCH["weights"].sum()
        return max(float(np.abs(slopes[p] - self.slopes[p]).max() / count) for p in slopes)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root = tmp_path_factory.mktemp("program")
    return {variant: Case(root / variant, variant) for variant in gemma.VARIANTS}


@pytest.fixture
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    """The one that a test is parametrized with; otherwise the dense one."""
    return cases[getattr(request, "param", "dense")]


both = pytest.mark.parametrize("case", gemma.VARIANTS, indirect=True)


@both
@pytest.mark.parametrize(
    "options", [{}, {"remat": "decoder", "chunk": 32}, {"remat": program.NAMES, "chunk": 48}], ids=str
)
def test_losses_and_gradients_are_tunix(case: Case, options: dict[str, Any]) -> None:
    value, slopes = case.run(**options)
    assert abs(value - float(case.loss)) / BATCH["weights"].sum() < 1e-5
    assert case.distance(slopes) < 1e-5
    assert min(float(np.abs(x).max()) for x in slopes.values()) > 0


def test_attention_in_blocks_changes_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention.blocks, "__defaults__", (32,))
    value, slopes = case.run(remat="block")
    assert abs(value - float(case.loss)) / BATCH["weights"].sum() < 1e-5
    assert case.distance(slopes) < 1e-5


@both
def test_packed_rows_compute_what_their_examples_compute_alone(case: Case) -> None:
    """Also proves that the comparison notices: one segment for a whole row is far off."""
    alone: dict[str, list[np.ndarray]] = {name: [] for name in BATCH}
    for row in range(len(BATCH["tokens"])):
        for segment in range(1, BATCH["segments"][row].max() + 1):
            here = BATCH["segments"][row] == segment
            for name, array in BATCH.items():
                padded = np.zeros(64, array.dtype)
                padded[: here.sum()] = array[row][here]
                alone[name].append(padded)
    one = case.run({name: np.stack(rows) for name, rows in alone.items()})
    assert abs(one[0] - float(case.loss)) / BATCH["weights"].sum() < 1e-5
    assert case.distance(one[1]) < 1e-5
    mixed = {**BATCH, "segments": np.minimum(BATCH["segments"], 1)}
    value, slopes = case.run(mixed)
    assert abs(value - float(case.loss)) / BATCH["weights"].sum() > 1e-3
    assert case.distance(slopes) > 1e-3


def test_no_example_feels_another_in_local_and_in_global_layers(case: Case) -> None:
    """Changing one example's tokens leaves every other example's hidden states bit for bit."""
    settings = program.Settings.of(case.arch, ADAPTER, mesh=None, compute_dtype="float32")
    adapter = stages.stack(case.arch, case.tree, gemma.mesh())
    run = jit(lambda batch: program.hidden(adapter, case.base, batch, settings, None))
    batch = {name: jnp.asarray(array) for name, array in BATCH.items()}
    first = BATCH["segments"] == 1
    other = {**batch, "tokens": jnp.where(first, 500, batch["tokens"])}
    one, two = np.asarray(run(batch)), np.asarray(run(other))
    rest = ~first & (BATCH["segments"] > 0)
    np.testing.assert_array_equal(one[rest], two[rest])
    assert np.abs(one[first] - two[first]).max() > 0.1


@both
def test_half_of_k_and_v_trains_that_half_alone(case: Case) -> None:
    adapter = AdapterConfig(rank=4, alpha=6, targets=("q_proj", "v_proj"))
    settings = program.Settings.of(case.arch, adapter, mesh=None, compute_dtype="float32")
    fresh = stages.init(case.arch, adapter, seed=0, mesh=gemma.mesh())
    run = jit(jax.grad(lambda a: program.loss(a, case.base, BATCH, settings)[0]))
    slopes = dict(lora.flatten(stages.unstack(case.arch, run(fresh))))
    b = np.asarray(slopes["layers.0.attn.kv_einsum.w_lora_b"])
    assert not b[:, 0].any() and b[:, 1].any()
    assert not any("mlp" in path for path in slopes)


def test_dropout_follows_its_key_and_is_off_without_one(case: Case) -> None:
    adapter = AdapterConfig(rank=4, alpha=6, dropout=0.4)
    settings = program.Settings.of(case.arch, adapter, mesh=None, compute_dtype="float32")
    stacked = stages.stack(case.arch, case.tree, gemma.mesh())
    run = jit(lambda key: program.loss(stacked, case.base, BATCH, settings, key)[0])
    still = jit(lambda: program.loss(stacked, case.base, BATCH, settings)[0])()
    one, same, other = (float(run(jax.random.key(seed))) for seed in (0, 0, 1))
    assert one == same and one != other
    assert abs(float(still) - float(case.loss)) / BATCH["weights"].sum() < 1e-5
    assert one != float(still)


@both
def test_a_model_without_adapters_is_the_base(case: Case) -> None:
    settings = program.Settings.of(case.arch, None, mesh=None, compute_dtype="float32")
    ids = gemma.tokens(1, 40)
    rows = {"tokens": ids, "positions": np.arange(40)[None], "segments": np.ones_like(ids)}
    model = load.load(case.directory, mesh=gemma.mesh(), param_dtype="float32", compute_dtype="float32")
    got = jit(lambda: program.logits(None, case.base, rows, settings))()
    np.testing.assert_allclose(got, gemma.tunix_logits(model, ids, gemma.mesh()), atol=1e-4)


def test_bfloat16_is_near(case: Case) -> None:
    _, base = stages.load(case.directory, mesh=gemma.mesh(), dtype="bfloat16")
    settings = program.Settings.of(case.arch, ADAPTER, mesh=None, compute_dtype="bfloat16")
    stacked = stages.stack(case.arch, case.tree, gemma.mesh())
    run = jit(jax.value_and_grad(lambda a: program.loss(a, base, BATCH, settings)[0]))
    value, slopes = run(stacked)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(slopes))
    assert abs(float(value) / float(case.loss) - 1) < 0.03


SHARDED = """
import dataclasses, jax, numpy as np, sys
from pathlib import Path
from support import gemma
from tunewright_workloads.contract.configs import AdapterConfig
from tunewright_workloads.gemma import lora, program, stages
adapter, rows = AdapterConfig(rank=4, alpha=6), gemma.packed(4, 64)
def run(on):
    arch, base = stages.load(sys.argv[1], mesh=on, dtype="float32")
    fresh = stages.init(arch, adapter, seed=2, mesh=on)
    moved = jax.tree.map(lambda x: x + 0.01, fresh)
    settings = program.Settings.of(arch, adapter, mesh=on, compute_dtype="float32", remat=program.NAMES)
    if sys.argv[4] == "ring" and on.size > 1:
        settings = dataclasses.replace(settings, ring=True, barriers=True)
    spread = jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec("fsdp"))
    batch = {k: jax.device_put(v, spread) for k, v in rows.items()}
    step = jax.jit(jax.value_and_grad(lambda a, b, x: program.loss(a, b, x, settings)[0]), compiler_options=gemma.QUICK)
    value, slopes = step(moved, base, batch)
    return float(value), dict(lora.flatten(stages.unstack(arch, slopes)))
one, many = run(gemma.mesh()), run(gemma.mesh(int(sys.argv[2]), int(sys.argv[3])))
count = rows["weights"].sum()
assert abs(one[0] - many[0]) / count < 1e-5, (one[0], many[0])
for path in one[1]:
    assert np.abs(np.asarray(one[1][path]) - np.asarray(many[1][path])).max() / count < 1e-5, path
print("same")
"""


@pytest.mark.parametrize(
    ("variant", "fsdp", "tp", "weights"),
    [("dense", 4, 1, "gathered"), ("dense", 4, 1, "ring"), ("ple", 2, 2, "gathered")],
)
def test_four_devices_compute_what_one_does(
    variant: Any, fsdp: int, tp: int, weights: str, tmp_path: Path
) -> None:
    """weights: gathered, or handed round in a ring as on TPUs."""
    tiny.write(tmp_path, variant=variant, groups=2)
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    paths = (Path(tiny.__file__).parents[2], Path(gemma.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    command = [sys.executable, "-c", SHARDED, str(tmp_path), str(fsdp), str(tp), weights]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.stdout.strip().endswith("same"), done.stderr[-3000:]


def test_every_target_of_the_contract_is_one_of_a_projection(case: Case) -> None:
    assert {t for p in stages.adapted(case.arch, ADAPTER) for t in p.targets} == set(TARGETS)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_quantized_base_trains_as_its_dequantized_weights_do(kind: Any, case: Case) -> None:
    adapter = AdapterConfig(rank=4, alpha=6, quantize_base=kind)
    settings = program.Settings.of(case.arch, adapter, mesh=None, compute_dtype="float32")
    assert settings.saved == program.NAMES
    _, small = stages.load(case.directory, mesh=gemma.mesh(), dtype="float32", quantized=kind)
    large = jax.tree.map(
        lambda x: quantize.dequantize(x, jnp.dtype("float32")) if isinstance(x, quantize.Quantized) else x,
        small,
        is_leaf=lambda x: isinstance(x, quantize.Quantized),
    )
    stacked = stages.stack(case.arch, case.tree, gemma.mesh())
    run = jit(jax.value_and_grad(lambda a, b: program.loss(a, b, BATCH, settings)[0]))
    (got, slopes), (want, plain) = run(stacked, small), run(stacked, large)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(slopes), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5 * BATCH["weights"].sum())
    assert 1e-4 < abs(float(got) / float(case.loss) - 1) < 0.2
