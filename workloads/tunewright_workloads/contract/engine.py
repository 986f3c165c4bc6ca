"""vLLM's arguments and environment for a ServeConfig, each with the reason that it is there.

Pure: the plan renders the same command that the workload runs. Facts about flags come from
tpu-inference and vLLM 0.32; where a value is ours and not theirs the reason says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tunewright_workloads.contract import hbm
from tunewright_workloads.contract.accelerators import ACCELERATORS, Accelerator, Slice, accelerator
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.models import ModelSpec

COMMAND = ("python3", "-m", "vllm.entrypoints.openai.api_server")
"""Always spelled out: the entrypoints of the images differ between builds."""

BASES = ("vllm/vllm-tpu", "vllm/vllm-openai")
"""vLLM's own images, on which Dockerfile.serve puts our workloads; as they are they cannot start a planned pod.
A release is pinned by digest. The tag `gemma4` of vllm-tpu is frozen."""

LACKING = "No module named tunewright_workloads"
"""What Python says in an image that Dockerfile.serve did not make."""

BUILD = "Build Dockerfile.serve with --build-arg BASE={base} and name what it makes; see docs/install.md."
"""What to do then."""

IMAGE_TOKENS = 2496
"""Tokens of one image: a batch that cannot hold them fails at start."""

SEQUENCES = {"cpu": 4, "tpu": 128, "gpu": 256}
"""Sequences decoded together where a config says nothing."""

LENGTH = {"cpu": 2048, "tpu": 16384, "gpu": 16384}
BATCHED = 4096
UTILIZATION = {"cpu": 0.5, "tpu": 0.95, "gpu": 0.90}

# Start of a cold slice: 10-30 min of compilation, after weights. Each budget holds the one before it.
ENGINE_READY_SECONDS = 3000
STARTUP_SECONDS = 3600
PROGRESS_DEADLINE_SECONDS = 4200
PRE_STOP_SECONDS = 15
GRACE_MARGIN_SECONDS = 30

OWNED = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--data-parallel-size",
)
"""What extraArgs may not change: the Service, the gate and the slice depend on it."""


@dataclass(frozen=True)
class Flag:
    """One command line argument. value None: a switch."""

    name: str
    value: str | None
    reason: str

    @property
    def text(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Budgets:
    """Seconds that the pod's probes and the Deployment allow. A start that takes longer than the
    engine's own timeout ends by that timeout and its message, not by a probe."""

    engine_ready: int
    startup: int
    progress_deadline: int
    pre_stop: int
    drain: int
    grace: int


@dataclass(frozen=True)
class EnginePlan:
    """How to start vLLM. `notes` are what a user should know: experimental accelerators and the like."""

    flags: tuple[Flag, ...]
    environment: tuple[Variable, ...]
    fit: hbm.Fit | None
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        return [flag.text for flag in self.flags]

    @property
    def command(self) -> list[str]:
        return [*COMMAND, *self.arguments]

    @property
    def variables(self) -> dict[str, str]:
        return {v.name: v.value for v in self.environment}


def layout(chip: Accelerator, slice_: Slice) -> tuple[int, int]:
    """(tensor parallel, data parallel) of a slice.

    v7x shows two devices a chip and the published recipe runs one replica a chip; everything else is
    one replica over all devices. Raises UserError for a slice of several hosts.
    """
    if chip.kind == "cpu":
        return 1, 1
    if slice_.multi_host:
        raise UserError(
            Fault(
                "spec.accelerator.topology",
                "serving needs the chips of one host: vLLM on several TPU hosts is not planned here",
                show(slice_.topology),
                f"Use at most {max(s.chips for s in chip.slices if not s.multi_host)} chips, and replicas.",
            )
        )
    if chip.devices_per_chip > 1:
        return chip.devices_per_chip, slice_.chips
    return slice_.chips, 1


def plan(
    config: ServeConfig, model: ModelSpec | None = None, *, weight_bytes: float | None = None
) -> EnginePlan:
    """The whole start of vLLM for `config`.

    model: the shape of what is served; None where only the workload can know it (then the fit is
           checked by the workload, and `fit` is None here).
    Raises UserError with every setting that cannot work, HBM that does not suffice among them.
    """
    chip = accelerator(config.accelerator, "accelerator")
    faults = _faults(config, chip)
    if faults:
        raise UserError(faults)
    length = config.max_model_length or min(
        LENGTH[chip.kind], model.max_context if model else LENGTH[chip.kind]
    )
    if model and length > model.max_context:
        raise UserError(
            Fault("maxModelLength", f"must be at most {model.max_context}, the model's context", str(length))
        )
    flags = [*_model(config), *_shape(config, chip, length), *_kind(config, chip)]
    flags += [
        Flag("--host", config.host, "where the Service and the probes reach it"),
        Flag("--port", str(config.port), "the container port of the plan"),
        Flag(
            "--shutdown-timeout",
            str(config.drain_seconds),
            "on SIGTERM requests in flight may end; the default, 0, aborts them",
        ),
    ]
    flags += _extra(config.extra_args)
    found = None
    if model is not None and chip.kind != "cpu":
        sequences = config.max_sequences or SEQUENCES[chip.kind]
        found = hbm.fit(
            model,
            chip,
            tensor_parallel=config.tensor_parallel,
            length=length,
            batched_tokens=config.max_batched_tokens or BATCHED,
            sequences=sequences,
            utilization=UTILIZATION[chip.kind],
            dtype="bfloat16" if config.dtype == "auto" else config.dtype,
            kv_dtype=config.kv_cache_dtype if config.kv_cache_dtype != "auto" else "bfloat16",
            weight_bytes=weight_bytes,
        )
        # A number of sequences that was asked for is a promise; the default only caps a batch.
        hbm.refuse(found, config.max_sequences or 1, "accelerator")
    return EnginePlan(tuple(flags), tuple(_environment(config, chip)), found, tuple(_notes(chip)))


def refuse_base(image: str, place: str) -> None:
    """Raises UserError for one of vLLM's own images, which lacks what the pod runs, gates and drains by."""
    repository = image.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    if repository.removeprefix("docker.io/") in BASES:
        raise UserError(
            Fault(
                place,
                "is vLLM's own image, without Tunewright's workloads in it",
                show(image),
                BUILD.format(base=image),
            )
        )


def budgets(config: ServeConfig) -> Budgets:
    """Probe and termination budgets that agree with each other and with the engine's own timeout."""
    small = config.engine == "jax" or accelerator(config.accelerator, "accelerator").kind == "cpu"
    ready, startup, progress = (
        (600, 900, 1200) if small else (ENGINE_READY_SECONDS, STARTUP_SECONDS, PROGRESS_DEADLINE_SECONDS)
    )
    grace = PRE_STOP_SECONDS + config.drain_seconds + GRACE_MARGIN_SECONDS
    return Budgets(ready, startup, progress, PRE_STOP_SECONDS, config.drain_seconds, grace)


def cache_key(image: str, topology: str | None, plan: EnginePlan) -> str:
    """Directory name for compiled programs: 16 hex digits of image, slice and what shapes a program.

    Where the model lies, what it is called and how the server ends shape no program, so that a new
    version of a fine-tuned model finds the programs of the last one.
    """
    shaping = [
        flag.text
        for flag in plan.flags
        if flag.name
        not in {
            "--model",
            "--served-model-name",
            "--host",
            "--port",
            "--shutdown-timeout",
            "--load-format",
            "--model-loader-extra-config",
            "--enable-auto-tool-choice",
            "--tool-call-parser",
        }
    ]
    variables = [f"{v.name}={v.value}" for v in plan.environment if v.name == "MODEL_IMPL_TYPE"]
    text = json.dumps([image, topology, shaping, variables])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _faults(config: ServeConfig, chip: Accelerator) -> list[Fault]:
    faults = []
    if chip.serving == "no":
        able = ", ".join(a.name for a in ACCELERATORS.values() if a.serving == "verified")
        faults.append(Fault("accelerator", "cannot serve", show(chip.name), f"Use one of {able}."))
    if chip.kind == "cpu" and config.kv_cache_dtype == "fp8":
        faults.append(
            Fault("kvCacheDtype", "fp8 needs an accelerator", show("fp8"), "Use auto with accelerator cpu.")
        )
    if chip.kind == "cpu" and config.tensor_parallel * config.data_parallel != 1:
        faults.append(
            Fault("tensorParallel", "must be 1 on a CPU", str(config.tensor_parallel * config.data_parallel))
        )
    asked = config.max_batched_tokens
    if chip.kind != "cpu" and asked is not None and asked < IMAGE_TOKENS:
        faults.append(
            Fault(
                "maxBatchedTokens",
                f"must be at least {IMAGE_TOKENS}, the tokens of one image, or the engine fails at start",
                str(asked),
                f"{BATCHED} is a good start.",
            )
        )
    for argument in config.extra_args:
        name = argument.split("=", 1)[0].replace("_", "-")
        if name in OWNED:
            faults.append(
                Fault("extraArgs", f"{name} is set from the spec and cannot be given here", show(argument))
            )
    return faults


def _model(config: ServeConfig) -> list[Flag]:
    """Where the weights come from and what the model is called."""
    remote = config.model.startswith("gs://")
    path = config.model if remote else config.model.removeprefix("file://")
    flags = [
        Flag("--model", path, "the merged directory" + (", streamed from the bucket" if remote else "")),
        Flag(
            "--served-model-name",
            config.served_name,
            "clients and the gate ask for this name, not for a path",
        ),
    ]
    if remote:
        flags.append(
            Flag(
                "--load-format",
                "runai_streamer",
                "reads the bucket in parallel; plain gcsfuse took an hour where this takes minutes",
            )
        )
        if config.tensor_parallel > 1:
            flags.append(
                Flag(
                    "--model-loader-extra-config",
                    json.dumps({"distributed": True}, separators=(",", ":")),
                    "each shard's reader fetches its part once, not the whole model per device",
                )
            )
    return flags


def _shape(config: ServeConfig, chip: Accelerator, length: int) -> list[Flag]:
    """Parallelism, lengths, batch and types."""
    flags = [
        Flag("--tensor-parallel-size", str(config.tensor_parallel), f"devices of {chip.name} a replica spans")
    ]
    if config.data_parallel > 1:
        flags.append(
            Flag(
                "--data-parallel-size",
                str(config.data_parallel),
                "one replica a chip of two devices; requests are spread over them",
            )
        )
    flags.append(
        Flag("--max-model-len", str(length), "prompt and answer together; sizes the KV cache of a sequence")
    )
    sequences = config.max_sequences or SEQUENCES[chip.kind]
    if chip.kind == "cpu":
        dtype = "float32" if config.dtype == "auto" else config.dtype
        flags.append(
            Flag(
                "--max-num-seqs", str(sequences), "each sequence costs a CPU's caches; more only wait longer"
            )
        )
        if config.max_batched_tokens is not None:
            flags.append(Flag("--max-num-batched-tokens", str(config.max_batched_tokens), "as asked"))
        flags.append(Flag("--dtype", dtype, "float32 is exact on a CPU and not slower; as asked when asked"))
        return flags
    flags.append(
        Flag(
            "--max-num-batched-tokens",
            str(config.max_batched_tokens or BATCHED),
            f"the default, 2048, is below the {IMAGE_TOKENS} tokens of one image and fails",
        )
    )
    flags.append(
        Flag("--max-num-seqs", str(sequences), "sequences decoded together; sizes the logits in HBM")
    )
    flags.append(
        Flag(
            "--gpu-memory-utilization",
            f"{UTILIZATION[chip.kind]:.2f}",
            "share of HBM for weights, activations and KV cache; the rest is the runtime's",
        )
    )
    if config.dtype != "auto":
        flags.append(Flag("--dtype", config.dtype, "as asked; without it the checkpoint's own"))
    if config.kv_cache_dtype != "auto":
        note = "half the KV cache, twice the sequences" if config.kv_cache_dtype == "fp8" else "as asked"
        if config.kv_cache_dtype == "fp8" and chip.name == "v6e":
            note += "; on v6e it becomes e5m2"
        flags.append(Flag("--kv-cache-dtype", config.kv_cache_dtype, note))
    return flags


def _kind(config: ServeConfig, chip: Accelerator) -> list[Flag]:
    """What one kind of accelerator needs."""
    flags = []
    if chip.kind == "cpu":
        override = json.dumps({"architectures": ["Gemma4ForCausalLM"]}, separators=(",", ":"))
        flags.append(
            Flag(
                "--hf-overrides",
                override,
                "same files, vision tower skipped: checkpoints name the multimodal class",
            )
        )
        flags.append(
            Flag("--enforce-eager", None, "no compiler on a laptop; a start takes seconds, not minutes")
        )
    if chip.kind == "tpu":
        flags.append(
            Flag(
                "--disable_chunked_mm_input",
                None,
                "an image is not split over two batches, which the TPU path cannot do",
            )
        )
    flags += [
        Flag("--enable-auto-tool-choice", None, "tool calls of the answer become tool_calls of the API"),
        Flag("--tool-call-parser", "gemma4", "Gemma 4 writes tool calls in a syntax of its own"),
    ]
    return flags


def _extra(arguments: Iterable[str]) -> list[Flag]:
    """The user's own, last, so that they win over what is planned. `--name value` is joined."""
    flags: list[Flag] = []
    for argument in arguments:
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            flags.append(Flag(name, value if equals else None, "extraArgs of the spec"))
        elif flags and flags[-1].value is None:
            flags[-1] = Flag(flags[-1].name, argument, flags[-1].reason)
        else:
            raise UserError(
                Fault(
                    "extraArgs",
                    "holds a value without a flag before it",
                    show(argument),
                    "Write --name=value.",
                )
            )
    return flags


def _environment(config: ServeConfig, chip: Accelerator) -> list[Variable]:
    found = [
        Variable("VLLM_NO_USAGE_STATS", "1", "no usage report leaves the cluster"),
        Variable("DO_NOT_TRACK", "1", "the same, for the libraries below vLLM"),
        Variable("HF_HUB_OFFLINE", "1", "the model is complete where it lies; nothing is looked up"),
        Variable("TRANSFORMERS_OFFLINE", "1", "the same, for transformers"),
    ]
    if chip.kind == "cpu":
        return [
            *found,
            Variable("VLLM_CPU_KVCACHE_SPACE", "1", "GiB; the default takes much of a laptop's memory"),
            Variable("VLLM_CPU_OMP_THREADS_BIND", "nobind", "binding needs rights that a container may lack"),
            Variable("OMP_NUM_THREADS", "2", "leaves the other cores to the machine"),
            Variable("VLLM_HOST_IP", "127.0.0.1", "its processes talk to each other on loopback alone"),
            Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "forking a process with threads can hang"),
        ]
    found.append(
        Variable(
            "VLLM_ENGINE_READY_TIMEOUT_S",
            str(ENGINE_READY_SECONDS),
            "the default, 600, ends a first start in the middle of its 10-30 min of compilation",
        )
    )
    if chip.kind == "tpu":
        if config.compile_cache:
            found += [
                Variable(
                    "VLLM_XLA_CACHE_PATH",
                    config.compile_cache,
                    "overrides JAX_COMPILATION_CACHE_DIR; mounted, since a gs:// cache is reported not to hit",
                ),
                Variable(
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "-1", "keep every program, quick ones too"
                ),
                Variable(
                    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1", "keep every program, small ones too"
                ),
            ]
        if any(re.match(r"--enable[-_]lora\b", a) for a in config.extra_args):
            found.append(Variable("MODEL_IMPL_TYPE", "vllm", "the flax path of TPU has no adapter manager"))
    elif config.compile_cache:
        found.append(
            Variable("VLLM_CACHE_ROOT", config.compile_cache, "torch.compile and autotuning results are kept")
        )
    return found


def _notes(chip: Accelerator) -> list[str]:
    if chip.serving == "experimental":
        return [f"Serving on {chip.name} is experimental: no verified recipe of vLLM exists for it."]
    return []
