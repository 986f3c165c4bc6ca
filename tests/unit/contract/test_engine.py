"""vLLM's command for each accelerator, line by line, and the arithmetic that says whether it fits."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tunewright_workloads.contract import engine, hbm
from tunewright_workloads.contract.accelerators import ACCELERATORS, slice_of
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.models import MODELS

B31 = MODELS["gemma-4-31b"]
DIGEST = "vllm/vllm-tpu@sha256:" + "a" * 64


def settings(**changes: Any) -> ServeConfig:
    return ServeConfig(
        **{
            "endpoint": "default/support-bot",
            "model": "gs://acme/models/support-bot/merged",
            "served_name": "support-bot",
            "engine": "vllm",
            "accelerator": "v6e",
            "tensor_parallel": 8,
            "max_model_length": 16384,
            "max_batched_tokens": 4096,
            "work": "/var/tunewright",
            **changes,
        }
    )


V6E_8_31B = [
    ("--model=gs://acme/models/support-bot/merged", "streamed from the bucket"),
    ("--served-model-name=support-bot", "clients and the gate ask for this name"),
    ("--load-format=runai_streamer", "plain gcsfuse took an hour"),
    ('--model-loader-extra-config={"distributed":true}', "fetches its part once"),
    ("--tensor-parallel-size=8", "devices of v6e a replica spans"),
    ("--max-model-len=16384", "prompt and answer together"),
    ("--max-num-batched-tokens=4096", "2048, is below the 2496 tokens of one image"),
    ("--max-num-seqs=128", "sizes the logits"),
    ("--gpu-memory-utilization=0.95", "share of HBM"),
    ("--kv-cache-dtype=fp8", "on v6e it becomes e5m2"),
    ("--disable_chunked_mm_input", "an image is not split over two batches"),
    ("--enable-auto-tool-choice", "tool_calls of the API"),
    ("--tool-call-parser=gemma4", "a syntax of its own"),
    ("--host=0.0.0.0", "Service and the probes"),
    ("--port=8000", "container port"),
    ("--shutdown-timeout=120", "the default, 0, aborts them"),
]

V6E_8_ENVIRONMENT = [
    ("VLLM_NO_USAGE_STATS", "1", "no usage report"),
    ("DO_NOT_TRACK", "1", "the same"),
    ("HF_HUB_OFFLINE", "1", "nothing is looked up"),
    ("TRANSFORMERS_OFFLINE", "1", "for transformers"),
    ("VLLM_ENGINE_READY_TIMEOUT_S", "3000", "the default, 600"),
    ("VLLM_XLA_CACHE_PATH", "/cache", "a gs:// cache is reported not to hit"),
    ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "-1", "quick ones too"),
    ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1", "small ones too"),
]


def test_the_plan_of_31b_on_v6e_8_is_this_command_with_a_reason_a_flag() -> None:
    plan = engine.plan(settings(kv_cache_dtype="fp8", compile_cache="/cache"), B31)
    assert plan.command[:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert plan.arguments == [flag for flag, _ in V6E_8_31B]
    for flag, (_, reason) in zip(plan.flags, V6E_8_31B, strict=True):
        assert reason in flag.reason, flag
    assert [(v.name, v.value) for v in plan.environment] == [(n, v) for n, v, _ in V6E_8_ENVIRONMENT]
    for variable, (_, _, reason) in zip(plan.environment, V6E_8_ENVIRONMENT, strict=True):
        assert reason in variable.reason, variable
    assert "SKIP_JAX_PRECOMPILE" not in plan.variables, (
        "compiling in the first requests is not for production"
    )
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("changes", "has", "lacks"),
    [
        ({"tensor_parallel": 4}, ["--tensor-parallel-size=4"], ["--data-parallel-size"]),
        (
            {"accelerator": "v7x", "tensor_parallel": 2, "data_parallel": 4},
            ["--tensor-parallel-size=2", "--data-parallel-size=4", "--disable_chunked_mm_input"],
            [],
        ),
        (
            {"accelerator": "h100", "tensor_parallel": 2},
            ["--tensor-parallel-size=2", "--gpu-memory-utilization=0.90"],
            ["--disable_chunked_mm_input"],
        ),
        (
            {"model": "file:///mnt/claims/models/bot"},
            ["--model=/mnt/claims/models/bot"],
            ["--load-format", "--model-loader-extra-config"],
        ),
        ({"dtype": "bfloat16"}, ["--dtype=bfloat16"], []),
        ({"max_sequences": 9}, ["--max-num-seqs=9"], []),
        ({"max_batched_tokens": None}, ["--max-num-batched-tokens=4096"], []),
        ({"drain_seconds": 7}, ["--shutdown-timeout=7"], []),
        ({"extra_args": ("--seed", "3", "--enable-prefix-caching")}, ["--seed=3", "--enable-prefix-caching"], []),
    ],
    ids=["v6e-4", "v7x", "2 x h100", "mounted", "dtype", "sequences", "batch", "drain", "extra"],
)  # fmt: skip
def test_a_setting_becomes_its_flag(changes: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    plan = engine.plan(settings(**changes), B31)
    assert not [flag for flag in has if flag not in plan.arguments]
    assert not [flag for flag in plan.flags if flag.name in lacks]
    assert all(len(flag.reason) > 5 for flag in plan.flags)


def test_a_cpu_starts_with_the_flags_and_variables_that_were_found_by_running() -> None:
    plan = engine.plan(
        settings(model="file:///m", accelerator="cpu", tensor_parallel=1, max_model_length=512, host="127.0.0.1", max_batched_tokens=None)
    )  # fmt: skip
    for flag in (
        "--model=/m",
        "--host=127.0.0.1",
        "--max-model-len=512",
        "--max-num-seqs=4",
        "--enforce-eager",
        "--dtype=float32",
        '--hf-overrides={"architectures":["Gemma4ForCausalLM"]}',
    ):
        assert flag in plan.arguments
    assert (
        plan.variables.items()
        >= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }.items()
    )
    assert plan.fit is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_batched_tokens": 2048}, r"maxBatchedTokens: must be at least 2496.*got 2048"),
        (
            {"accelerator": "cpu", "tensor_parallel": 1, "kv_cache_dtype": "fp8"},
            "kvCacheDtype: fp8 needs an acc",
        ),
        ({"accelerator": "cpu"}, "tensorParallel: must be 1 on a CPU"),
        ({"extra_args": ("--port=1",)}, "extraArgs: --port is set from the spec"),
        ({"extra_args": ("--served_model_name", "x")}, "extraArgs: --served-model-name is set"),
        ({"extra_args": ("7",)}, "extraArgs: holds a value without a flag"),
        ({"max_model_length": 300_000}, "maxModelLength: must be at most 262144"),
        ({"accelerator": "v9"}, "accelerator: must be one of"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine.plan(settings(**changes), B31)


def test_an_adapter_on_tpu_takes_the_path_that_has_an_adapter_manager() -> None:
    plan = engine.plan(settings(extra_args=("--enable-lora",)), B31)
    assert plan.variables["MODEL_IMPL_TYPE"] == "vllm"
    assert "MODEL_IMPL_TYPE" not in engine.plan(settings(), B31).variables


def test_v5e_has_no_verified_recipe_and_the_plan_says_so() -> None:
    plan = engine.plan(
        settings(accelerator="v5e", tensor_parallel=8, max_model_length=4096, kv_cache_dtype="fp8"), B31
    )
    assert plan.notes == ("Serving on v5e is experimental: no verified recipe of vLLM exists for it.",)


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("v6e", {"topology": "2x4"}, (8, 1)),
        ("v6e", {"topology": "2x2"}, (4, 1)),
        ("v7x", {"topology": "2x2x1"}, (2, 4)),
        ("v7x", {"topology": "1x1x1"}, (2, 1)),
        ("h100", {"count": 2}, (2, 1)),
        ("cpu", {}, (1, 1)),
    ],
)
def test_the_layout_of_a_slice(kind: str, asked: dict[str, Any], expected: tuple[int, int]) -> None:
    assert engine.layout(ACCELERATORS[kind], slice_of(kind, **asked)) == expected


def test_a_slice_of_several_hosts_is_refused_for_serving() -> None:
    with pytest.raises(UserError, match="serving needs the chips of one host"):
        engine.layout(ACCELERATORS["v6e"], slice_of("v6e", "2x4", chips_per_host=4))


# --- memory -----------------------------------------------------------------------------------------


def test_the_fit_of_31b_on_v6e_8_by_hand() -> None:
    plan = engine.plan(settings(), B31)
    fit = plan.fit
    assert fit is not None
    assert fit.weights == pytest.approx(30.697e9 * 2 / 8)
    assert fit.usable == pytest.approx(32e9 * 0.95)
    # 50 local layers with 16 / 8 heads of 256; 10 global ones with one of 4 heads (replicated) of 512;
    # key and value, two bytes each.
    per_token = (50 * 2 * 256 + 10 * 1 * 512) * 2 * 2
    assert fit.sequence == per_token * 16384
    # Residual, norm and sums; queries and attention's answer; gate, up and their product; f32 logits.
    activations = 4096 * 2 * (4 * 5376 + (2 * 32 * 512 + 3 * 21504) / 8) + 2 * 4 * 128 * 262144
    assert fit.activations == pytest.approx(activations)
    assert fit.sequences == int((fit.usable - fit.weights - activations) // fit.sequence) > 1


def test_fp8_halves_the_cache_and_nothing_else() -> None:
    plain, small = engine.plan(settings(), B31).fit, engine.plan(settings(kv_cache_dtype="fp8"), B31).fit
    assert plain is not None and small is not None
    assert small.sequence * 2 == plain.sequence
    assert (small.weights, small.activations) == (plain.weights, plain.activations)
    assert small.sequences >= 2 * plain.sequences


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"accelerator": "h100", "tensor_parallel": 1, "max_model_length": 262144},
            "1 sequence of 262144 tokens",
        ),
        ({"tensor_parallel": 1}, r"57\.18 GiB of weights .* of 28\.31 GiB usable on each of 1 devices"),
        ({"max_sequences": 64}, r"64 sequences of 16384 tokens.*\d+ sequences fit: ask for fewer"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine.plan(settings(**changes), B31)


def test_without_a_known_model_nothing_is_claimed_about_memory() -> None:
    assert engine.plan(settings()).fit is None


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize(
    ("kind", "tp"), [("v6e", 8), ("v6e", 4), ("v7x", 2), ("h100", 2)], ids=lambda v: str(v)
)
def test_every_model_of_the_catalog_fits_the_slices_that_serve_it(name: str, kind: str, tp: int) -> None:
    length = min(16384, MODELS[name].max_context)
    fit = engine.plan(
        settings(accelerator=kind, tensor_parallel=tp, max_model_length=length), MODELS[name]
    ).fit
    assert fit is not None
    assert fit.sequences >= 1
    assert re.match(r"[\d.]+ GiB of weights \+ [\d.]+ GiB of activations", str(fit))


def test_more_devices_never_take_more_memory_each() -> None:
    def on(tp: int) -> hbm.Fit:
        return hbm.fit(
            B31, ACCELERATORS["v6e"], tensor_parallel=tp, length=4096, batched_tokens=4096, sequences=64, utilization=0.9
        )  # fmt: skip

    for small, large in ((1, 2), (2, 4), (4, 8)):
        assert on(large).weights < on(small).weights
        assert on(large).sequence <= on(small).sequence
        assert on(large).activations <= on(small).activations


# --- budgets and the compile cache -------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"engine": "jax", "accelerator": "cpu", "tensor_parallel": 1}])
@pytest.mark.parametrize("drain", [0, 120, 3600])
def test_each_budget_holds_the_one_inside_it(changes: dict[str, Any], drain: int) -> None:
    config = settings(drain_seconds=drain, **changes)
    found = engine.budgets(config)
    assert found.engine_ready < found.startup < found.progress_deadline
    assert found.grace > found.pre_stop + drain
    assert found.startup >= 45 * 60 or config.engine == "jax"
    if config.engine == "vllm":
        assert engine.plan(config, B31).variables["VLLM_ENGINE_READY_TIMEOUT_S"] == str(found.engine_ready)


def test_the_cache_key_changes_with_what_shapes_a_program_and_with_nothing_else() -> None:
    key = engine.cache_key(DIGEST, "2x4", engine.plan(settings(), B31))
    assert re.fullmatch(r"[0-9a-f]{16}", key)
    same: list[dict[str, Any]] = [
        {"model": "gs://acme/models/support-bot-2/merged"},
        {"model": "file:///mnt/models/bot"},
        {"served_name": "other", "endpoint": "default/other"},
        {"port": 9000, "host": "127.0.0.1", "drain_seconds": 9},
        {"compile_cache": "/elsewhere"},
    ]
    for changes in same:
        assert engine.cache_key(DIGEST, "2x4", engine.plan(settings(**changes), B31)) == key, changes
    other: list[dict[str, Any]] = [
        {"max_model_length": 8192},
        {"max_batched_tokens": 8192},
        {"kv_cache_dtype": "fp8"},
        {"dtype": "bfloat16"},
        {"max_sequences": 4},
        {"extra_args": ("--seed=1",)},
    ]
    keys = [engine.cache_key(DIGEST, "2x4", engine.plan(settings(**c), B31)) for c in other]
    keys.append(engine.cache_key(DIGEST, "4x4", engine.plan(settings(), B31)))
    keys.append(engine.cache_key(DIGEST.replace("a" * 64, "b" * 64), "2x4", engine.plan(settings(), B31)))
    assert len({key, *keys}) == len(keys) + 1
