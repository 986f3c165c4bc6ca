"""FineTuneJob: a dataset and a base model become an adapter and a merged model."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from tunewright_operator.api.base import Record, Resource, Section, section
from tunewright_operator.api.conditions import Condition
from tunewright_operator.api.hardware import GPUS, TPUS, TrainAccelerator
from tunewright_operator.api.metadata import GROUP_VERSION, Metadata, name_rules
from tunewright_operator.api.pods import PodTemplate, TokenRef
from tunewright_operator.api.rules import Rule, Transition, listed, mapped
from tunewright_operator.api.transitions import immutable, raised
from tunewright_operator.api.values import Duration, Int, Name, ReadUri, Revision, WriteUri, seconds
from tunewright_workloads.contract import meshes
from tunewright_workloads.contract.configs import LANES, TARGETS, Target
from tunewright_workloads.contract.models import CUSTOM, MODELS, ModelSpec

ModelName = Literal["gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-e4b", "gemma-4-e2b", "gemma-4-tiny", "custom"]
assert set(get_args(ModelName)) == {*MODELS, CUSTOM}  # the API cannot know fewer models than the catalog

_HUB = [m.name for m in MODELS.values() if m.source.startswith("hf://")]
_CONTEXT = {m.name: m.max_context for m in MODELS.values()}
_LONGEST = max(_CONTEXT.values())


def _untrainable(m: ModelSpec) -> Rule:
    return Rule(
        f"trainable-{m.name}",
        f"{m.name} cannot be trained: {m.untrainable_reason}",
        lambda model: model.name != m.name,
        f"self.name != '{m.name}'",
        fields=("name",),
        fix="Choose another model",
    )


class Model(Section):
    """The base model."""

    name: ModelName = Field(
        description="A model of the catalog, or custom: the architecture is read from the source's config.json.",
        examples=["gemma-4-31b"],
    )
    source: ReadUri | None = Field(
        None, description="The checkpoint in Hugging Face format. Default: the catalog's."
    )
    revision: Revision = Field(
        "main", description="Branch, tag or commit of an hf:// source; resolved to a commit and recorded."
    )
    token_secret_ref: TokenRef | None = Field(
        None, description="Secret with the Hugging Face token; for models and datasets that need one."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "custom-source",
            "is required for model custom",
            lambda m: m.name != CUSTOM or m.source is not None,
            f"self.name != '{CUSTOM}' || has(self.source)",
            fields=("source", "name"),
            fix="Say where the checkpoint is, for example gs://bucket/model",
        ),
        Rule(
            "revision-hub",
            "is of an hf:// source alone",
            lambda m: m.revision == "main" or m.uri.startswith("hf://"),
            "self.revision == 'main' || (has(self.source) ? self.source.startsWith('hf://')"
            f" : self.name in {listed(_HUB)})",
            fields=("revision", "source", "name"),
            fix="Remove it; other places keep one version",
        ),
        *(_untrainable(m) for m in MODELS.values() if not m.trainable),
    )

    @property
    def spec(self) -> ModelSpec | None:
        """The catalog's entry; None for custom."""
        return MODELS.get(self.name)

    @property
    def uri(self) -> str:
        """Where the base checkpoint is; empty for custom without a source, which is a fault."""
        return self.source or (MODELS[self.name].source if self.name in MODELS else "")


class Dataset(Section):
    """What is trained on. JSONL, one row a line."""

    train: list[ReadUri] = Field(
        min_length=1,
        max_length=64,
        description="Files of training rows, or folders of them.",
        examples=[["gs://bucket/train.jsonl"]],
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    validation: list[ReadUri] = Field(
        default_factory=list,
        max_length=64,
        description="Files of validation rows. Without them there is no evalLoss.",
        json_schema_extra={"default": [], "x-kubernetes-list-type": "atomic"},
    )
    format: Literal["auto", "messages", "prompt-completion", "text"] = Field(
        "auto", description="Format of the rows; auto looks at them."
    )
    max_length: Int = Field(
        2048, ge=8, le=_LONGEST, description="tokens of a row; longer ones are treated as `overlong` says."
    )
    overlong: Literal["drop", "truncate", "fail"] = Field(
        "drop", description="What becomes of rows longer than maxLength."
    )
    packing: bool = Field(
        True, description="Put several rows into one of maxLength tokens; they do not see each other."
    )
    loss_on: Literal["assistant", "completion", "all"] = Field(
        "assistant",
        description="The tokens that are learned: the assistant's turns, the last one, or all. "
        "Rows of the format text are always learned as a whole.",
    )
    thinking: bool = Field(
        False,
        description="Learn what the assistant thinks, too (reasoning, reasoning_content), which chat "
        "templates drop otherwise.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "train-unique",
            "must not name a file twice",
            lambda d: len(set(d.train)) == len(d.train),
            "self.train.all(f, self.train.exists_one(g, g == f))",
            fields=("train",),
            fix="Rows are repeated by training.epochs",
        ),
        Rule(
            "validation-apart",
            "must not name a file of dataset.train: its loss would say nothing",
            lambda d: not set(d.validation) & set(d.train),
            "!self.validation.exists(f, f in self.train)",
            fields=("validation", "train"),
            fix="Hold some rows back in a file of their own",
        ),
    )


class Adapter(Section):
    """LoRA: W + alpha/rank * B A on the targets."""

    rank: Int = Field(16, ge=1, le=512, description="Rank of the adapter.")
    alpha: float = Field(
        default_factory=lambda data: float(data["rank"]),
        gt=0,
        le=32768,
        description="Scale: the adapter's product counts alpha/rank times. Default: the rank.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the adapter's input that is dropped.")
    targets: list[Target] = Field(
        default_factory=lambda: list(TARGETS),
        min_length=1,
        max_length=len(TARGETS),
        description="Projections that get an adapter.",
        json_schema_extra={"default": list(TARGETS), "x-kubernetes-list-type": "set"},
    )
    quantize_base: Literal["none", "int8", "nf4"] = Field(
        "none",
        description="Keep the frozen base in 8 or 4 bits while training (QLoRA): less memory, more time a step. "
        "The merge uses the original. Not on GPUs.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "alpha-scale",
            "alpha/rank must be at most 64: a larger scale diverges",
            lambda a: a.alpha <= 64 * a.rank,
            "!has(self.alpha) || self.alpha <= 64.0 * double(self.rank)",
            fields=("alpha", "rank"),
            fix="Common are rank and twice the rank",
        ),
        Rule(
            "targets-kv",
            "k_proj and v_proj go together: Gemma 4 computes both with one projection",
            lambda a: ("k_proj" in a.targets) == ("v_proj" in a.targets),
            "('k_proj' in self.targets) == ('v_proj' in self.targets)",
            fields=("targets",),
            fix="Name both or neither",
        ),
        Rule(
            "targets-unique",
            "must not name a projection twice",
            lambda a: len(set(a.targets)) == len(a.targets),
            fields=("targets",),
            offline="the API server says it by the list's type set: Duplicate value",
        ),
    )


class Training(Section):
    """Length, batch and optimizer (AdamW)."""

    steps: Int | None = Field(None, ge=1, le=10_000_000, description="Optimizer steps; instead of epochs.")
    epochs: float | None = Field(
        default_factory=lambda data: None if data.get("steps") is not None else 1.0,
        gt=0,
        le=1000,
        description="Passes over the training rows, also a fraction. Default 1 when there are no steps.",
    )
    global_batch_size: Int = Field(
        16,
        ge=1,
        le=65536,
        description="Rows of an optimizer step over all devices (packed rows with packing).",
    )
    micro_batch_size: Int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Rows that are computed at a time over all devices; gradients are accumulated up to "
        "globalBatchSize. Default: all of them.",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="The peak.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls after the warm-up."
    )
    warmup_steps: Int = Field(0, ge=0, le=1_000_000, description="Steps up to the peak.")
    weight_decay: float = Field(0.0, ge=0, le=10, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(
        1.0, ge=0, le=1e6, description="Gradients are clipped to this norm; 0: never."
    )
    remat: Literal["auto", "none", "block", "decoder"] = Field(
        "auto", description="What is recomputed in the backward pass to save memory."
    )
    seed: Int = Field(
        42, ge=0, lt=2**32, description="Of the adapter's start, the order of rows and dropout."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "epochs-or-steps",
            "cannot stand beside steps",
            lambda t: t.epochs is None or t.steps is None,
            "!(has(self.epochs) && has(self.steps))",
            fields=("epochs", "steps"),
            fix="Remove one of the two",
        ),
        Rule(
            "micro-batch",
            "must divide globalBatchSize",
            lambda t: t.micro_batch_size is None or t.global_batch_size % t.micro_batch_size == 0,
            "!has(self.microBatchSize) || self.globalBatchSize % self.microBatchSize == 0",
            fields=("microBatchSize", "globalBatchSize"),
        ),
        Rule(
            "warmup",
            "must be less than steps",
            lambda t: t.steps is None or t.warmup_steps < t.steps,
            "!has(self.steps) || self.warmupSteps < self.steps",
            fields=("warmupSteps", "steps"),
            fix="The learning rate would never reach its peak",
        ),
    )

    @property
    def rows(self) -> int:
        """Rows that are on the devices at one time."""
        return self.micro_batch_size or self.global_batch_size


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
        None, alias="costUSD", gt=0, le=10_000_000, description="US dollars at the catalog's price for spec.accelerator.provisioning, or the operator's own."
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
            + ", ".join(f"{v} {k}" for k, v in _CONTEXT.items())
            + ")",
            lambda s: s.dataset.max_length <= _CONTEXT.get(s.model.name, _LONGEST),
            f"!(self.model.name in {mapped(_CONTEXT)})"
            f" || self.dataset.maxLength <= {mapped(_CONTEXT)}[self.model.name]",
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


# -- status --------------------------------------------------------------------------------------

JobPhase = Literal[
    "Pending",
    "Preflight",
    "Queued",
    "Provisioning",
    "Training",
    "Merging",
    "Evaluating",
    "Succeeded",
    "Failed",
    "Suspended",
]


class JobProgress(Record):
    """The newest record of the stage that runs."""

    stage: str | None = Field(None, max_length=32, description="train, merge, evaluate.")
    step: int = Field(0, ge=0, description="Optimizer steps done.")
    total_steps: int = Field(0, ge=0, description="0 while unknown.")
    epoch: float = Field(0.0, ge=0, description="Passes over the training rows.")
    loss: float | None = Field(None, description="Token-weighted mean of the last step, nats.")
    eval_loss: float | None = Field(None, description="On the validation rows, nats.")
    tokens_per_second: float | None = Field(None, description="Useful tokens, without padding.")
    eta: datetime | None = Field(None, description="When the stage is expected to end.")


class Cost(Record):
    """At the named price; what is billed may differ."""

    estimated_usd: float | None = Field(
        None, alias="estimatedUSD", ge=0, description="US dollars that the whole job is expected to cost."
    )
    spent_usd: float = Field(0.0, alias="spentUSD", ge=0, description="US dollars, over all attempts.")
    chip_hours: float = Field(0.0, ge=0, description="Chips times hours held, over all attempts.")
    price: str = Field(
        "", max_length=1024, description="The price reckoned with: dollars, model, date and source."
    )


class Preflight(Record):
    """What was known before the slice was bought."""

    fits: bool | None = Field(None, description="Whether the step fits the chips' memory.")
    peak_hbm: float | None = Field(None, alias="peakHBM", ge=0, description="GiB a chip.")
    step_seconds: float | None = Field(None, ge=0, description="Estimate by the compiler's cost model.")
    message: str = Field("", max_length=4096, description="What was found.")


class CheckpointStatus(Record):
    """The last committed checkpoint."""

    step: int = Field(ge=0, description="Its optimizer step.")
    time: datetime | None = Field(None, description="When it was seen.")


class Artifact(Record):
    """Something that was published."""

    uri: str = Field(max_length=2048, description="Where it is.")
    digest: str | None = Field(None, max_length=128, description="sha256 over its content.")


class Artifacts(Record):
    """What the job published."""

    adapter: Artifact | None = Field(None, description="The adapter.")
    merged: Artifact | None = Field(None, description="The merged model, ready to serve.")
    base_digest: str | None = Field(None, max_length=128, description="Of the base's weights.")
    dataset_digest: str | None = Field(None, max_length=128, description="Of the training rows.")
    revision: str | None = Field(None, max_length=128, description="Commit that model.revision stood for.")


class Run(Record):
    """One start of a stage's pods; a whole slice is one run."""

    uid: str = Field(max_length=64, description="uid of the first pod.")
    stage: str = Field(max_length=32, description="train, merge, evaluate.")
    chips: int = Field(0, ge=0, description="Chips that it held.")
    start: str = Field(max_length=32, description="When the pod got its node, UTC.")
    end: str | None = Field(None, max_length=32, description="When it ended.")
    outcome: str | None = Field(None, max_length=64, description="How it ended.")


class Ledger(Record):
    """The operator's account of all runs, from which attempts, preemptions and cost follow."""

    open: list[Run] = Field(
        default_factory=list,
        max_length=256,
        description="Runs whose pods still exist.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    settled: list[Annotated[str, Field(max_length=64)]] = Field(
        default_factory=list,
        max_length=64,
        description="First pods of the runs that were added up last.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    chip_hours: float = Field(0.0, ge=0, description="Of the runs whose pods are gone.")
    run_seconds: float = Field(0.0, ge=0, description="Of the runs whose pods are gone.")
    attempts: int = Field(0, ge=0, description="Starts that did not repeat an interrupted run.")
    preemptions: int = Field(0, ge=0, description="Of the runs whose pods are gone.")
    failures: dict[str, int] = Field(
        default_factory=dict, max_length=8, description="By stage, of the runs whose pods are gone."
    )
    last: str | None = Field(None, max_length=64, description="How the run that started last ended.")


class FineTuneJobStatus(Record):
    """What is observed. Written by the operator alone."""

    phase: JobPhase = Field("Pending", description="Where the job is, in one word.")
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
    progress: JobProgress | None = Field(None, description="Of the stage that runs.")
    cost: Cost | None = Field(None, description="In US dollars and chip-hours.")
    preflight: Preflight | None = Field(None, description="What was known beforehand.")
    checkpoint: CheckpointStatus | None = Field(None, description="The last committed one.")
    artifacts: Artifacts | None = Field(None, description="What was published.")
    attempts: int = Field(0, ge=0, description="Attempts that failed or run, without preemptions.")
    preemptions: int = Field(0, ge=0, description="Times that the slice was taken away.")
    ledger: Ledger | None = Field(None, description="The operator's account of all runs.")
    start_time: datetime | None = Field(None, description="When the first pod ran.")
    completion_time: datetime | None = Field(None, description="When it succeeded or failed.")


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
