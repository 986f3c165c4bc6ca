"""What a FineTuneJob computes: which model learns from which rows, by which adapter and schedule."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field

from tunewright_operator.api.base import Section
from tunewright_operator.api.pods import TokenRef
from tunewright_operator.api.rules import Rule, listed
from tunewright_operator.api.values import Int, ReadUri, Revision
from tunewright_workloads.contract.configs import TARGETS, Target
from tunewright_workloads.contract.models import CUSTOM, MODELS, ModelSpec

ModelName = Literal["gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-e4b", "gemma-4-e2b", "gemma-4-tiny", "custom"]
assert set(get_args(ModelName)) == {*MODELS, CUSTOM}  # the API cannot know fewer models than the catalog

_HUB = [m.name for m in MODELS.values() if m.source.startswith("hf://")]
CONTEXT = {m.name: m.max_context for m in MODELS.values()}
LONGEST = max(CONTEXT.values())


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
        2048, ge=8, le=LONGEST, description="tokens of a row; longer ones are treated as `overlong` says."
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
