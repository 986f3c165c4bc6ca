"""FineTuneJob: a dataset and a base model become an adapter and a merged model."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tunewright_operator.api.base import Resource, Section, section
from tunewright_operator.api.hardware import GPUS, TPUS, TrainAccelerator
from tunewright_operator.api.jobstatus import FineTuneJobStatus
from tunewright_operator.api.metadata import GROUP_VERSION, Metadata, name_rules
from tunewright_operator.api.pods import PodTemplate
from tunewright_operator.api.recipe import CONTEXT, LONGEST, Adapter, Dataset, Model, Training
from tunewright_operator.api.rules import Rule, Transition, mapped
from tunewright_operator.api.transitions import immutable, raised
from tunewright_operator.api.values import Duration, Int, Name, WriteUri, seconds
from tunewright_workloads.contract import meshes
from tunewright_workloads.contract.configs import LANES


class Queue(Section):
    """Kueue admits the job when there is quota."""

    name: Name = Field(description="Name of the LocalQueue in the same namespace.", examples=["tpu-team-a"])


class Checkpoint(Section):
    """Adapter, optimizer and data position: what a preempted job goes on from."""

    every_steps: Int = Field(50, ge=1, le=1_000_000, description="Steps between two checkpoints.")
    keep: Int = Field(3, ge=1, le=1000, description="Checkpoints that are kept, the newest.")


class Output(Section):
    """Where the results go: checkpoints/, metrics.jsonl, report.json, merged/, adapter/."""

    uri: WriteUri = Field(
        description="Folder of this job alone: gs:// or pvc:// (and file:// on a laptop).",
        examples=["gs://bucket/models/support-bot"],
    )
    merge: bool = Field(True, description="Publish the merged model; false: the adapter only.")
    dtype: Literal["bfloat16", "float16", "float32", "keep"] = Field(
        "bfloat16", description="Type of the merged weights; keep: as in the base."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "output-outlives",
            "file:// in a cluster is lost with the pod",
            lambda o: not o.uri.startswith("file://"),
            "!self.uri.startsWith('file://')",
            fields=("uri",),
            fix="Write to gs:// or pvc://; file:// is for `tunewright run`",
            cluster=True,
        ),
    )


class Evaluation(Section):
    """Measured on the merged model and the validation rows, before publishing."""

    max_eval_loss: float | None = Field(
        None, gt=0, le=100, description="nats a token; a model above it is not published and the job fails."
    )


class Limits(Section):
    """Where the job ends by itself, with its last checkpoint kept."""

    run_time: Duration | None = Field(
        None, description="Time with a slice held, over all attempts.", examples=["12h"]
    )
    cost_usd: float | None = Field(
        None,
        alias="costUSD",
        gt=0,
        le=10_000_000,
        description="US dollars at the catalog's price for spec.accelerator.provisioning, or the operator's own.",
    )
    retries: Int = Field(
        3, ge=0, le=100, description="New attempts after a failure. A preemption is no failure."
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        raised(
            "runTime",
            lambda new, old: (
                new.run_time is None
                or (old.run_time is not None and seconds(new.run_time) >= seconds(old.run_time))
            ),
            "!has(self.runTime) || (has(oldSelf.runTime) && duration(self.runTime) >= duration(oldSelf.runTime))",
        ),
        raised(
            "costUSD",
            lambda new, old: (
                new.cost_usd is None or (old.cost_usd is not None and new.cost_usd >= old.cost_usd)
            ),
            "!has(self.costUSD) || (has(oldSelf.costUSD) && self.costUSD >= oldSelf.costUSD)",
        ),
        raised("retries", lambda new, old: new.retries >= old.retries, "self.retries >= oldSelf.retries"),
    )

    @property
    def run_seconds(self) -> int | None:
        return None if self.run_time is None else seconds(self.run_time)


_TWO_TYPES = "mesh is a word or a mapping, and CEL cannot look into a field of two types"


def _rows_field(spec: FineTuneJobSpec) -> str:
    return "microBatchSize" if spec.training.micro_batch_size else "globalBatchSize"


def _mesh_devices(spec: FineTuneJobSpec) -> bool:
    mesh = spec.accelerator.mesh
    return mesh.fsdp is None or mesh.tp is None or mesh.fsdp * mesh.tp == spec.accelerator.devices


def _mesh_model(spec: FineTuneJobSpec) -> bool:
    mesh = spec.accelerator.mesh
    return mesh.fsdp is None or mesh.tp is None or meshes.problem(spec.model.spec, mesh.fsdp, mesh.tp) is None


def _mesh_problem(spec: FineTuneJobSpec) -> str | None:
    mesh = spec.accelerator.mesh
    if mesh.fsdp is None or mesh.tp is None:
        return None
    found = meshes.problem(spec.model.spec, mesh.fsdp, mesh.tp)
    return f"Here {found}" if found else None


def _layouts(spec: FineTuneJobSpec, rows: int) -> list[tuple[int, int]]:
    """The meshes that the spec leaves open, each as (fsdp, tp) that divides `rows`."""
    mesh, devices = spec.accelerator.mesh, spec.accelerator.devices
    if mesh.fsdp is not None and mesh.tp is not None:
        return [(mesh.fsdp, mesh.tp)] if rows % mesh.fsdp == 0 else []
    if spec.accelerator.chip.kind == "gpu":
        return [(devices, 1)] if rows % devices == 0 else []
    return meshes.layouts(spec.model.spec, devices, rows)


def _rows_hint(spec: FineTuneJobSpec) -> str | None:
    """What the rows must be a multiple of: the smallest fsdp that slice and model allow."""
    devices = spec.accelerator.devices
    found = _layouts(spec, devices * (spec.accelerator.mesh.fsdp or devices))
    if not found:
        return f"No layout of {devices} devices shards {spec.model.name}: choose a smaller slice"
    return f"Make {_rows_field(spec)} a multiple of {min(fsdp for fsdp, _ in found)}"


class FineTuneJobSpec(Section):
    """What is wanted."""

    model: Model = Field(description="The base model.", examples=[{"name": "gemma-4-31b"}])
    dataset: Dataset = Field(
        description="What is trained on.", examples=[{"train": ["gs://bucket/train.jsonl"]}]
    )
    adapter: Adapter = section(Adapter, "The LoRA adapter.")
    training: Training = section(Training, "Length, batch and optimizer.")
    accelerator: TrainAccelerator = Field(
        description="The slice that trains.", examples=[{"type": "v5p", "topology": "2x2x1"}]
    )
    queue: Queue | None = Field(None, description="Wait for quota in a Kueue queue.")
    checkpoint: Checkpoint = section(Checkpoint, "How often the state is saved.")
    output: Output = Field(
        description="Where the results go.", examples=[{"uri": "gs://bucket/models/support-bot"}]
    )
    evaluation: Evaluation | None = Field(
        None, description="Measure the merged model on the validation rows before publishing it."
    )
    limits: Limits = section(Limits, "Where the job ends by itself.")
    suspend: bool = Field(
        False, description="Give the slice back and wait; false goes on from the last checkpoint."
    )
    ttl_seconds_after_finished: Int | None = Field(
        None,
        ge=0,
        le=315_360_000,
        description="seconds after which the finished job is deleted with its pods; its output stays.",
    )
    service_account_name: Name | None = Field(
        None,
        description="Service account of the pods, for Workload Identity. Default: one of the job's own, which may only write its progress.",
    )
    pod_template: PodTemplate = section(PodTemplate, "What is added to every pod.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "max-length-context",
            "must not be above what the model can see ("
            + ", ".join(f"{v} {k}" for k, v in CONTEXT.items())
            + ")",
            lambda s: s.dataset.max_length <= CONTEXT.get(s.model.name, LONGEST),
            f"!(self.model.name in {mapped(CONTEXT)})"
            f" || self.dataset.maxLength <= {mapped(CONTEXT)}[self.model.name]",
            fields=("dataset.maxLength", "model.name"),
        ),
        Rule(
            "evaluation-validation",
            "needs rows to measure on",
            lambda s: s.evaluation is None or bool(s.dataset.validation),
            "!has(self.evaluation) || self.dataset.validation.size() > 0",
            fields=("evaluation", "dataset.validation"),
            fix="Give spec.dataset.validation, or remove the evaluation",
        ),
        Rule(
            "evaluation-merge",
            "measures the merged model, and spec.output.merge is false",
            lambda s: s.evaluation is None or s.output.merge,
            "!has(self.evaluation) || self.output.merge",
            fields=("evaluation", "output.merge"),
            fix="Set spec.output.merge to true, or remove the evaluation",
        ),
        Rule(
            "gpu-quantize",
            "must be none on GPUs: the PyTorch program trains on an unquantized base",
            lambda s: s.accelerator.chip.kind != "gpu" or s.adapter.quantize_base == "none",
            f"!(self.accelerator.type in {GPUS}) || self.adapter.quantizeBase == 'none'",
            fields=("adapter.quantizeBase", "accelerator.type"),
            fix="Set it to none, or train on TPU or cpu",
        ),
        Rule(
            "tpu-rows",
            f"must be a multiple of {LANES} on TPUs: the attention kernel works on blocks of as many tokens",
            lambda s: s.accelerator.chip.kind != "tpu" or s.dataset.max_length % LANES == 0,
            f"!(self.accelerator.type in {TPUS}) || self.dataset.maxLength % {LANES} == 0",
            fields=("dataset.maxLength", "accelerator.type"),
            hint=lambda s: f"Use {-(-s.dataset.max_length // LANES) * LANES}",
        ),
        Rule(
            "gpu-output",
            "cannot be gs:// on GPUs: the PyTorch program writes its checkpoints to a mounted path",
            lambda s: s.accelerator.chip.kind != "gpu" or not s.output.uri.startswith("gs://"),
            f"!(self.accelerator.type in {GPUS}) || !self.output.uri.startsWith('gs://')",
            fields=("output.uri", "accelerator.type"),
            fix="Write to pvc://claim/path",
        ),
        Rule(
            "gpu-mesh",
            "tp must be 1 on GPUs: FSDP alone shards there",
            lambda s: s.accelerator.chip.kind != "gpu" or s.accelerator.mesh.tp in (None, 1),
            fields=("accelerator.mesh", "accelerator.type"),
            fix="Write mesh: auto",
            offline=_TWO_TYPES,
        ),
        Rule(
            "flex-start-time",
            "flexStart takes the nodes back after 7 days",
            lambda s: (
                s.accelerator.provisioning.mode != "flexStart"
                or s.limits.run_seconds is None
                or s.limits.run_seconds <= 7 * 86400
            ),
            "self.accelerator.provisioning.mode != 'flexStart' || !has(self.limits.runTime)"
            " || duration(self.limits.runTime) <= duration('168h')",
            fields=("limits.runTime", "accelerator.provisioning.mode"),
            fix="Set runTime to 168h or less",
        ),
        Rule(
            "mesh-devices",
            "fsdp * tp must be the number of devices of the slice",
            _mesh_devices,
            fields=("accelerator.mesh", "accelerator.type", "accelerator.topology", "accelerator.count"),
            hint=lambda s: (
                f"{s.accelerator.type} has {s.accelerator.devices} devices here; or write mesh: auto"
            ),
            offline=_TWO_TYPES,
        ),
        Rule(
            "mesh-model",
            "must divide every axis of the model that it shards",
            _mesh_model,
            fields=("accelerator.mesh", "model.name"),
            hint=_mesh_problem,
            offline=_TWO_TYPES,
        ),
        Rule(
            "rows-shared",
            "the rows that are computed at a time must divide over the mesh's fsdp axis",
            lambda s: bool(_layouts(s, s.training.rows)),
            fields=(
                "training.globalBatchSize",
                "training.microBatchSize",
                "accelerator.mesh",
                "accelerator.type",
                "accelerator.topology",
                "accelerator.count",
                "model.name",
            ),
            hint=_rows_hint,
            offline="the mesh that auto stands for is chosen from the catalog's shapes, by a search",
        ),
    )


FineTuneJobSpec.transitions = immutable(
    FineTuneJobSpec, {"suspend", "ttlSecondsAfterFinished", "limits"}, "job"
)


class FineTuneJob(Resource):
    """Trains a LoRA adapter on a slice, merges it and publishes the model."""

    api_version: Literal["tunewright.dev/v1alpha1"] = Field(GROUP_VERSION, description="Version of the API.")
    kind: Literal["FineTuneJob"] = Field("FineTuneJob", description="Kind of the resource.")
    metadata: Metadata = Field(description="As of every Kubernetes object.", examples=[{"name": "example"}])
    spec: FineTuneJobSpec = Field(description="What is wanted.")
    status: FineTuneJobStatus = Field(
        default_factory=FineTuneJobStatus, description="What is observed; written by the operator."
    )

    rules: ClassVar[tuple[Rule, ...]] = name_rules(service=False)
