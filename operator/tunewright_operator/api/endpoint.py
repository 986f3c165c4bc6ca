"""ServeEndpoint: a published model becomes an OpenAI-compatible endpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tunewright_operator.api.base import Record, Resource, Section, section
from tunewright_operator.api.conditions import Condition
from tunewright_operator.api.hardware import ServeAccelerator
from tunewright_operator.api.metadata import GROUP_VERSION, Metadata, name_rules
from tunewright_operator.api.pods import PodTemplate, Reference, TokenRef
from tunewright_operator.api.rules import Rule
from tunewright_operator.api.transitions import immutable
from tunewright_operator.api.values import Int, Name, ReadUri, Revision, ServedName
from tunewright_workloads.contract.engine import OWNED

_SET_BY = {
    "--model": "spec.model",
    "--served-model-name": "spec.model.servedName",
    "--tensor-parallel-size": "spec.accelerator",
    "--data-parallel-size": "spec.accelerator",
}
"""The field that sets an argument of vLLM. Host and port are the plan's."""

# vLLM takes - and _ alike, and short forms of two of them.
_OWNED_REGEX = "(-tp|-dp|--(" + "|".join(flag[2:].replace("-", "[-_]") for flag in OWNED) + "))(=.*)?"


class ServedModel(Section):
    """What is served: the result of a job, or a model directory."""

    fine_tune_job_ref: Reference | None = Field(
        None,
        description="The FineTuneJob of this namespace whose merged model is served, as soon as it is there.",
    )
    uri: ReadUri | None = Field(None, description="A model directory in Hugging Face format.")
    revision: Revision = Field("main", description="Branch, tag or commit of an hf:// uri.")
    token_secret_ref: TokenRef | None = Field(None, description="Secret with the Hugging Face token.")
    served_name: ServedName | None = Field(
        None, description="The `model` that clients send. Default: the name of the resource."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "served-source",
            "needs exactly one of fineTuneJobRef and uri",
            lambda m: (m.fine_tune_job_ref is None) != (m.uri is None),
            "has(self.fineTuneJobRef) != has(self.uri)",
            fields=("", "fineTuneJobRef", "uri"),
            fix="Write fineTuneJobRef: {name: ...} or uri: gs://bucket/model",
        ),
        Rule(
            "served-revision",
            "is of an hf:// uri alone",
            lambda m: m.revision == "main" or (m.uri or "").startswith("hf://"),
            "self.revision == 'main' || (has(self.uri) && self.uri.startsWith('hf://'))",
            fields=("revision", "uri"),
            fix="Remove it; other places keep one version",
        ),
    )


class Engine(Section):
    """The server and its settings."""

    name: Literal["auto", "vllm", "jax"] = Field(
        "auto", description="vllm; jax: the small engine for cpu; auto: jax on cpu, else vllm."
    )
    image: (
        Annotated[
            str,
            Field(min_length=1, max_length=512),
            Rule(
                "image",
                "must be a container image, such as registry.example/tunewright/serve-tpu@sha256:...",
                lambda v: re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*", v) is not None,
                "self.matches(r'^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$')",
            ),
        ]
        | None
    ) = Field(
        None,
        description="Image of the server: one that Dockerfile.serve made, vLLM's with our workloads on top. "
        "Default: the operator's setting.",
    )
    max_model_length: Int | None = Field(
        None,
        ge=16,
        le=1_048_576,
        description="tokens of prompt and answer together. Default: what the model allows, at most 16384.",
    )
    max_batched_tokens: Int | None = Field(
        None, ge=1, le=1_048_576, description="tokens that vLLM schedules in one step. Default: vLLM's."
    )
    kv_cache_dtype: Literal["auto", "fp8", "bfloat16"] = Field(
        "auto", description="Type of the KV cache; fp8 halves its memory. auto: the model's."
    )
    extra_args: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        default_factory=list,
        max_length=64,
        description="More arguments for vLLM, one item an argument.",
        json_schema_extra={"default": [], "x-kubernetes-list-type": "atomic"},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "extra-args-owned",
            "must not set " + ", ".join(OWNED) + ": the plan sets them",
            lambda e: not any(re.fullmatch(_OWNED_REGEX, a, re.DOTALL) for a in e.extra_args),
            f"!self.extraArgs.exists(a, a.matches(r'^{_OWNED_REGEX}$'))",
            fields=("extraArgs",),
            fix="Use the fields of the spec",
            hint=lambda e: _owner(e.extra_args),
        ),
    )


def _owner(args: list[str]) -> str | None:
    for arg in args:
        field = _SET_BY.get(arg.split("=")[0].replace("_", "-"))
        if field:
            return f"Use {field} in place of {arg}"
    return None


class Autoscaling(Section):
    """Replicas by the requests that wait."""

    min: Int = Field(1, ge=1, le=1000, description="Replicas at least.")
    max: Int = Field(ge=1, le=1000, description="Replicas at most.", examples=[4])
    target_waiting_requests: Int = Field(
        10, ge=1, le=10_000, description="Requests waiting per replica above which one is added."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "autoscaling-range",
            "must not be less than min",
            lambda a: a.max >= a.min,
            "self.max >= self.min",
            fields=("max", "min"),
        ),
    )


class Rollout(Section):
    """How a new model replaces the old one."""

    strategy: Literal["recreate", "blueGreen"] = Field(
        "recreate",
        description="recreate: the old replicas go first, no spare slice needed; blueGreen: the new ones "
        "come up beside the old ones, then the traffic moves at once.",
    )
    gate: bool = Field(
        True,
        description="Ready only after the server has answered with the tokens that the merged model must give.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "blue-green-gate",
            "must be true for blueGreen: the gate decides when the traffic moves",
            lambda r: r.strategy != "blueGreen" or r.gate,
            "self.strategy != 'blueGreen' || self.gate",
            fields=("gate", "strategy"),
            fix="Remove gate: false, or set strategy: recreate",
        ),
    )


class CompileCache(Section):
    """Keeps compiled programs: a warm start takes minutes where a cold one takes half an hour."""

    pvc: Name = Field(
        description="PersistentVolumeClaim of this namespace; ReadWriteMany for several replicas.",
        examples=["vllm-cache"],
    )


class Benchmark(Section):
    """Open-loop load on the endpoint, once it is ready. The result goes to status."""

    input_tokens: Int = Field(512, ge=1, le=262_144, description="tokens of a prompt.")
    output_tokens: Int = Field(256, ge=1, le=65_536, description="tokens of an answer.")
    rates: list[Annotated[float, Field(gt=0, le=10_000)]] = Field(
        default_factory=lambda: [1.0],
        min_length=1,
        max_length=16,
        description="Requests a second; one measurement each.",
        json_schema_extra={"default": [1.0], "x-kubernetes-list-type": "atomic"},
    )
    requests: Int = Field(200, ge=1, le=100_000, description="Requests of a measurement.")
    warmup: Int = Field(10, ge=0, le=10_000, description="Requests before it that do not count.")


def _vllm_only(field: str, given: Callable[[Engine], bool], cel: str) -> Rule:
    return Rule(
        f"vllm-{field}",
        "is vLLM's, and the engine here is jax",
        lambda s: not given(s.engine) or not s.small,
        f"!({cel}) || self.engine.name == 'vllm'"
        " || (self.engine.name == 'auto' && self.accelerator.type != 'cpu')",
        fields=(f"engine.{field}", "engine.name", "accelerator.type"),
        fix="Set engine.name: vllm, or remove it",
    )


class ServeEndpointSpec(Section):
    """What is wanted."""

    model: ServedModel = Field(
        description="What is served.", examples=[{"fineTuneJobRef": {"name": "support-bot"}}]
    )
    accelerator: ServeAccelerator = Field(
        description="The slice of one replica.", examples=[{"type": "v6e", "topology": "2x4"}]
    )
    engine: Engine = section(Engine, "The server and its settings.")
    replicas: Int = Field(1, ge=0, le=1000, description="Copies of the server; 0 gives the slices back.")
    autoscaling: Autoscaling | None = Field(None, description="Replicas by load, instead of a fixed number.")
    rollout: Rollout = section(Rollout, "How a new model replaces the old one.")
    compile_cache: CompileCache | None = Field(None, description="Where compiled programs are kept.")
    drain_seconds: Int = Field(
        120, ge=0, le=3600, description="seconds that requests in flight get when a server ends."
    )
    benchmark: Benchmark | None = Field(None, description="Measure the endpoint once it is ready.")
    service_account_name: Name | None = Field(
        None, description="Service account of the pods, for Workload Identity. Default: the namespace's."
    )
    pod_template: PodTemplate = section(PodTemplate, "What is added to every pod.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "autoscaling-or-replicas",
            "cannot stand beside replicas",
            lambda s: s.autoscaling is None or s.replicas == 1,
            "!has(self.autoscaling) || self.replicas == 1",
            fields=("autoscaling", "replicas"),
            fix="Remove one of the two",
        ),
        Rule(
            "engine-cpu",
            "jax is the engine of accelerator cpu only",
            lambda s: s.engine.name != "jax" or s.accelerator.type == "cpu",
            "self.engine.name != 'jax' || self.accelerator.type == 'cpu'",
            fields=("engine.name", "accelerator.type"),
            fix="Leave engine.name out",
        ),
        _vllm_only("extraArgs", lambda e: bool(e.extra_args), "self.engine.extraArgs.size() > 0"),
        _vllm_only(
            "maxBatchedTokens",
            lambda e: e.max_batched_tokens is not None,
            "has(self.engine.maxBatchedTokens)",
        ),
        _vllm_only(
            "kvCacheDtype", lambda e: e.kv_cache_dtype != "auto", "self.engine.kvCacheDtype != 'auto'"
        ),
    )

    @property
    def small(self) -> bool:
        """Whether the small JAX engine serves (else vLLM)."""
        return self.engine.name == "jax" or (self.engine.name == "auto" and self.accelerator.type == "cpu")


ServeEndpointSpec.transitions = immutable(
    ServeEndpointSpec, {"replicas", "autoscaling", "rollout", "model"}, "endpoint"
)


# -- status --------------------------------------------------------------------------------------

EndpointPhase = Literal[
    "Pending", "Queued", "Provisioning", "Starting", "Verifying", "Ready", "Stopped", "Failed"
]


class Serving(Record):
    """The model that answers, and what it is made of."""

    name: str | None = Field(None, max_length=128, description="The `model` that clients send.")
    uri: str | None = Field(None, max_length=2048, description="Where it was loaded from.")
    digest: str | None = Field(None, max_length=128, description="sha256 of the model's manifest.")
    job: str | None = Field(None, max_length=253, description="The FineTuneJob that made it.")
    base: str | None = Field(None, max_length=1024, description="Source of the base model.")
    base_digest: str | None = Field(None, max_length=128, description="Of the base's weights.")
    adapter_digest: str | None = Field(None, max_length=128, description="Of the adapter.")
    dataset_digest: str | None = Field(None, max_length=128, description="Of the training rows.")
    step: int | None = Field(None, ge=0, description="Optimizer step of the adapter.")


class BenchmarkResult(Record):
    """One measurement at one rate."""

    rate: float = Field(ge=0, description="Requests a second that were sent.")
    requests_per_second: float | None = Field(None, ge=0, description="Requests a second that were answered.")
    output_tokens_per_second: float | None = Field(None, ge=0, description="Tokens a second, all requests.")
    ttft_p50: float | None = Field(
        None, alias="ttftP50", ge=0, description="seconds to the first token, median."
    )
    ttft_p99: float | None = Field(
        None, alias="ttftP99", ge=0, description="seconds to the first token, 99th percentile."
    )
    itl_p50: float | None = Field(None, alias="itlP50", ge=0, description="seconds between tokens, median.")
    itl_p99: float | None = Field(
        None, alias="itlP99", ge=0, description="seconds between tokens, 99th percentile."
    )
    failed: int = Field(0, ge=0, description="Requests that failed.")


class BenchmarkStatus(Record):
    """The last benchmark of what serves; figures of another revision do not stay."""

    time: datetime | None = Field(None, description="When it ended.")
    digest: str | None = Field(None, max_length=128, description="Of the model that was measured.")
    revision: str | None = Field(
        None, max_length=64, description="What was measured: the label tunewright.dev/revision of its pods."
    )
    generation: int | None = Field(None, ge=0, description="The generation of the spec that it was made for.")
    results: list[BenchmarkResult] = Field(
        default_factory=list,
        max_length=16,
        description="One a rate.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class ServeEndpointStatus(Record):
    """What is observed. Written by the operator alone."""

    phase: EndpointPhase = Field("Pending", description="Where the endpoint is, in one word.")
    message: str = Field("", max_length=4096, description="What happens, in one sentence.")
    observed_generation: int | None = Field(
        None, ge=0, description="The generation of the spec that this status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        description="Ready, and why not.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    url: str | None = Field(None, max_length=2048, description="Base URL of the OpenAI API in the cluster.")
    replicas: int = Field(0, ge=0, description="Pods that exist.")
    ready_replicas: int = Field(0, ge=0, description="Pods that answer.")
    selector: str | None = Field(
        None, max_length=1024, description="Label selector of the pods, for scaling."
    )
    model: Serving | None = Field(None, description="The model that answers.")
    benchmark: BenchmarkStatus | None = Field(None, description="The last benchmark.")


class ServeEndpoint(Resource):
    """Serves a model with vLLM behind the OpenAI API."""

    api_version: Literal["tunewright.dev/v1alpha1"] = Field(GROUP_VERSION, description="Version of the API.")
    kind: Literal["ServeEndpoint"] = Field("ServeEndpoint", description="Kind of the resource.")
    metadata: Metadata = Field(description="As of every Kubernetes object.", examples=[{"name": "example"}])
    spec: ServeEndpointSpec = Field(description="What is wanted.")
    status: ServeEndpointStatus = Field(
        default_factory=ServeEndpointStatus, description="What is observed; written by the operator."
    )

    rules: ClassVar[tuple[Rule, ...]] = name_rules(service=True)

    @property
    def served_name(self) -> str:
        """The `model` that clients send."""
        return self.spec.model.served_name or self.metadata.name
