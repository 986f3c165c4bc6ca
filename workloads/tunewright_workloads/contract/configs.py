"""The configuration of each workload: one JSON file a pod, mounted from a ConfigMap.

Every workload is started as `python -m tunewright_workloads.<name> --config FILE`. The plan fills
these models from a validated spec, so a workload never sees a default that the plan did not
choose; unknown keys are faults, because a key that nobody reads is a setting that was lost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from tunewright_workloads.contract import uris
from tunewright_workloads.contract.faults import Fault, UserError, nearest, show
from tunewright_workloads.contract.prices import Mode

Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS: tuple[Target, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

LANES = 128
"""On TPUs a row's length is a multiple of it: the attention kernel's blocks are."""


class Config(BaseModel):
    """Base of every workload's configuration: camelCase in files, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def text(self) -> str:
        """The file's content: indented JSON, stable order."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


class ModelSource(Config):
    """The base checkpoint, in Hugging Face format."""

    name: str = Field(description="Catalog name, or 'custom'")
    source: str = Field(description="URI: hf://, gs://, pvc://, file:// or sample://")
    revision: str = "main"

    @field_validator("source")
    @classmethod
    def _source(cls, value: str) -> str:
        return str(uris.parse(value, "source"))


class AdapterConfig(Config):
    """LoRA: W + alpha/rank * B A on the targets."""

    rank: int = Field(ge=1, le=1024)
    alpha: float = Field(gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[Target, ...] = TARGETS
    quantize_base: Literal["none", "int8", "nf4"] = "none"


class DatasetConfig(Config):
    """Where the rows are and what is trained on."""

    train: tuple[str, ...] = Field(min_length=1)
    validation: tuple[str, ...] = ()
    format: Literal["auto", "messages", "prompt-completion", "text"] = "auto"
    max_length: int = Field(ge=8, description="Tokens a row; longer ones are treated as `overlong` says")
    overlong: Literal["drop", "truncate", "fail"] = "drop"
    packing: bool = True
    loss_on: Literal["assistant", "completion", "all"] = "assistant"
    thinking: bool = Field(False, description="Train on what answers think, which templates drop otherwise")


class Schedule(Config):
    """Optimizer and length of the run. Exactly one of `epochs` and `steps`."""

    epochs: float | None = Field(None, gt=0)
    steps: int | None = Field(None, ge=1)
    global_batch_size: int = Field(ge=1, description="Rows a step (packed rows with packing)")
    micro_batch_size: int | None = Field(
        None, ge=1, description="Rows at a time on the whole mesh; None: all of them"
    )
    learning_rate: float = Field(gt=0, description="The peak")
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0, description="None: no clipping")
    remat: Literal["auto", "none", "block", "decoder"] = "auto"
    seed: int = Field(42, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _length(self) -> Schedule:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("exactly one of epochs and steps must be given")
        return self


class MeshConfig(Config):
    """Devices and how they are laid out. `fsdp * tp` is the number of devices."""

    accelerator: str
    topology: str | None = None
    hosts: int = Field(1, ge=1)
    fsdp: int | None = Field(None, ge=1, description="None: chosen from the model and the devices")
    tp: int | None = Field(None, ge=1)
    provisioning: Mode = Field("onDemand", description="How the nodes are obtained, for the report's price")


class TrainConfig(Config):
    """`python -m tunewright_workloads.train`.

    Writes below `output`: checkpoints/<step>/ (Orbax: adapter, optimizer, state), metrics.jsonl
    and report.json.
    """

    job: str = Field(description="Namespace/name, for logs and records")
    model: ModelSource
    dataset: DatasetConfig
    adapter: AdapterConfig
    training: Schedule
    mesh: MeshConfig
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    checkpoint_every: int = Field(50, ge=1, description="steps")
    checkpoint_keep: int = Field(3, ge=1)
    output: str
    work: str = Field(description="Scratch directory of the pod")
    progress: str | None = Field(None, description="File that the newest progress record is written to")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of Prometheus metrics; None: not served; 0: any free port"
    )

    @field_validator("output")
    @classmethod
    def _output(cls, value: str) -> str:
        return str(uris.parse(value, "output", writable=True))


class MergeConfig(Config):
    """`python -m tunewright_workloads.merge`: base + newest committed adapter -> Hugging Face directory."""

    job: str
    model: ModelSource
    adapter: str = Field(
        description="URI of the training output (checkpoints/ below it) or of a PEFT adapter"
    )
    step: int | None = Field(None, ge=0, description="None: the newest committed step")
    output: str = Field(description="URI of the published model")
    adapter_output: str | None = Field(
        None, description="URI that the adapter is written to in PEFT's format; None: it is not"
    )
    dtype: Literal["bfloat16", "float16", "float32", "keep"] = "bfloat16"
    max_shard_size: int | None = Field(None, ge=1, description="bytes; None: the base's own shard layout")
    dataset_digest: str | None = None
    work: str
    progress: str | None = None

    @field_validator("output")
    @classmethod
    def _output(cls, value: str) -> str:
        return str(uris.parse(value, "output", writable=True))

    @field_validator("adapter_output")
    @classmethod
    def _adapter_output(cls, value: str | None) -> str | None:
        return None if value is None else str(uris.parse(value, "adapterOutput", writable=True))


class EvaluateConfig(Config):
    """`python -m tunewright_workloads.evaluate`: loss of the published model on the validation rows."""

    job: str
    model: str = Field(description="URI of the merged model")
    dataset: DatasetConfig
    mesh: MeshConfig
    batch_size: int = Field(8, ge=1)
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_eval_loss: float | None = Field(
        None, description="Above it the stage fails with BAD_INPUT and says so"
    )
    work: str
    progress: str | None = None


class PreflightConfig(Config):
    """Static checks of memory and sharding before any slice is bought."""

    job: str
    model: ModelSource
    adapter: AdapterConfig
    training: Schedule
    dataset: DatasetConfig
    mesh: MeshConfig


class ServeConfig(Config):
    """`python -m tunewright_workloads.serve`: an OpenAI-compatible endpoint over a merged model.

    engine `jax` is the small engine for laptops; `vllm` runs vLLM with `extra_args` appended to
    the arguments that follow from the other fields.
    """

    endpoint: str
    model: str = Field(description="URI of the merged model")
    revision: str = Field("main", description="Branch, tag or commit of an hf:// model")
    require_manifest: bool = Field(
        True,
        description="False serves a directory that no merge has written, such as the base to compare with",
    )
    served_name: str
    engine: Literal["jax", "vllm"] = "jax"
    accelerator: str = "cpu"
    tensor_parallel: int = Field(1, ge=1)
    data_parallel: int = Field(1, ge=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_length: int | None = Field(None, ge=16)
    max_batched_tokens: int | None = Field(None, ge=1)
    max_sequences: int | None = Field(
        None, ge=1, description="Sequences decoded together; None: the engine's own choice"
    )
    compile_cache: str | None = Field(
        None, description="Mounted directory for compiled programs; None: none is kept"
    )
    kv_cache_dtype: Literal["auto", "fp8", "bfloat16"] = "auto"
    host: str = "0.0.0.0"
    port: int = Field(8000, ge=1, le=65535)
    drain_seconds: int = Field(120, ge=0)
    extra_args: tuple[str, ...] = ()
    work: str


class BenchConfig(Config):
    """`python -m tunewright_workloads.bench`: open-loop load against an OpenAI endpoint."""

    url: str = Field(description="Of the server, with or without /v1")
    model: str = Field(description="Name that the server lists")
    input_tokens: int = Field(512, ge=1)
    output_tokens: int = Field(256, ge=1)
    rates: tuple[PositiveFloat, ...] = Field(
        (1.0,), min_length=1, description="Requests a second, one measurement each"
    )
    requests: int = Field(200, ge=1, description="of one measurement")
    warmup: int = Field(10, ge=0, description="Requests before the first measurement, not counted")
    percentiles: tuple[Literal[50, 90, 99], ...] | None = Field(
        None, description="Refused when `requests` are too few for one of them; None: those they suffice for"
    )
    slo_ttft_ms: float | None = Field(None, gt=0, description="To the first token, for the goodput")
    slo_tpot_ms: float | None = Field(None, gt=0, description="A token after the first, for the goodput")
    timeout: float = Field(600.0, gt=0, description="Seconds that one request may take")
    seed: int = Field(42, ge=0)
    accelerator: str = Field("cpu", description="What the server runs on, for the floor and the record")
    topology: str | None = None
    count: int | None = Field(None, ge=1, description="GPUs")
    provisioning: Mode = Field("onDemand", description="How the nodes were obtained, for the price")
    params: float | None = Field(None, gt=0, description="Parameters a token passes through, for the floor")
    output: str = Field(description="Path or file:// URI of the report")


C = TypeVar("C", bound=Config)


def load(kind: type[C], path: str | Path) -> C:
    """Reads a workload's configuration file. Raises UserError with every fault in it."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    except ValueError as error:
        raise UserError(Fault(str(path), f"is not JSON: {error}")) from None
    return parse(kind, data, str(path))


def parse(kind: type[C], data: Any, place: str) -> C:
    """A configuration from plain data. Raises UserError with every fault, each below `place`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(faults_of(error, kind, place + ": ")) from None


def faults_of(error: ValidationError, kind: type[BaseModel], prefix: str = "") -> list[Fault]:
    """pydantic's findings as faults. Unknown keys get the nearest known name.

    A UserError raised inside a validator keeps its own rule, value and fix.
    """
    faults = []
    for item in error.errors(include_url=False):
        place = prefix + path_of(item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, UserError):
            faults += [replace(fault, place=place) for fault in cause.faults]
        elif item["type"] == "extra_forbidden":
            near = nearest(str(item["loc"][-1]), field_names(kind, item["loc"][:-1]))
            faults.append(
                Fault(place, "is not a field", None, f"Did you mean {near}?" if near else "Remove it.")
            )
        elif item["type"] == "missing":
            faults.append(Fault(place, "is required"))
        elif item["type"] == "json_invalid":  # its input is the whole file
            faults.append(Fault(prefix.removesuffix(": ") or place, f"is not JSON: {item['ctx']['error']}"))
        else:
            message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            value = item["input"]
            faults.append(
                Fault(
                    place, message[:1].lower() + message[1:], None if isinstance(value, dict) else show(value)
                )
            )
    return faults


def path_of(loc: tuple[int | str, ...]) -> str:
    """('spec', 'dataset', 'train', 0) -> 'spec.dataset.train[0]'."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text or "(document)"


def field_names(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names (as written in files) of the fields of the model found at `loc` below `kind`."""
    current: Any = kind
    for part in loc:
        if isinstance(part, int):
            continue
        for name, field in current.model_fields.items():
            if part in (field.alias, name):
                current = _model_in(field.annotation)
                break
        else:
            return []
        if current is None:
            return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model inside Optional[...], list[...], tuple[...], Annotated[...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
