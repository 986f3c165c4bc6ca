"""`report.json`: what one training run did, in everything that a comparison needs.

Both training programs (JAX and PyTorch) write this record at the end; `tunewright compare` reads
two of them and refuses to set side by side what is not the same work. Times are seconds, money is
US dollars, tokens are counted over all hosts.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tunewright_workloads.contract.prices import Mode, Price

SCHEMA = "tunewright.dev/report/v1"


class _Record(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class BaseModelRecord(_Record):
    """The frozen base."""

    name: str
    source: str
    digest: str = Field(description="sha256 over names and digests of the weight files")
    params: int = Field(ge=1, description="Text parameters, in elements")
    params_active: int | None = Field(None, description="Parameters a token passes through, where it differs")


class AdapterRecord(_Record):
    """What was trained."""

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: list[str]
    modules: list[str] = Field(description="Every adapted projection, Hugging Face names without prefix")
    params: int


class DataRecord(_Record):
    """What it was trained on. Digests are sha256 over the token ids and masks in the order trained."""

    digest: str = Field(description="over the dataset's files")
    template_digest: str
    token_digest: str = Field(description="over all token ids of all batches, in order, without padding")
    mask_digest: str = Field(description="over the loss masks in the same order")
    rows: int = Field(description="Examples that were trained on in one epoch")
    dropped: dict[str, int] = Field(default_factory=dict)
    packing: bool
    max_length: int
    loss_on: str
    tokens_useful: int = Field(description="Non-padding tokens over the whole run")
    tokens_trained: int = Field(description="Tokens with loss over the whole run")
    tokens_padded: int = Field(description="All positions computed, padding included")


class PrecisionRecord(_Record):
    """Number formats; `base` includes quantization."""

    base: str
    compute: str
    adapter: str
    moments: str


class HardwareRecord(_Record):
    """What it ran on and what that costs."""

    type: str
    topology: str | None = None
    chips: int = Field(description="0 on cpu")
    hosts: int = 1
    mode: Mode = Field("onDemand", description="How the nodes were obtained")
    price: Price = Field(description="of one chip for one hour")


class TimeRecord(_Record):
    """Seconds of wall clock, over all attempts."""

    total: float
    compile: float = 0.0
    load: float = 0.0
    steps: float = Field(description="Inside optimizer steps, compilation apart")
    checkpoint: float = 0.0
    evaluation: float = 0.0
    step_median: float
    cache: Literal["none", "cold", "warm", "unknown"] = Field(
        "unknown", description="Of compiled programs; none: the program compiles nothing"
    )


class TrainingRecord(_Record):
    """Length and optimizer."""

    steps: int
    global_batch_size: int
    micro_batch_size: int
    learning_rate: float
    schedule: str
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float | None
    seed: int
    epochs: float
    loss_scale: Literal["nats/token"] = "nats/token"


class LossPoint(_Record):
    """The token-weighted mean loss of one optimizer step."""

    step: int
    loss: float
    tokens: int = Field(description="Tokens with loss in this step")


class RunReport(_Record):
    """The whole record."""

    schema_: str = Field(SCHEMA, alias="schema")
    job: str
    program: Literal["jax", "torch"]
    model: BaseModelRecord
    adapter: AdapterRecord
    data: DataRecord
    training: TrainingRecord
    precision: PrecisionRecord
    hardware: HardwareRecord
    time: TimeRecord
    loss: list[LossPoint]
    eval_loss: float | None = None
    attempts: int = 1
    versions: dict[str, str] = Field(default_factory=dict)

    def tokens_per_second(self, *, padded: bool = False) -> float:
        """Over the time inside steps: useful tokens, or all positions computed."""
        tokens = self.data.tokens_padded if padded else self.data.tokens_useful
        return tokens / self.time.steps if self.time.steps > 0 else 0.0

    def mfu(self, peak_flops: float, *, padded: bool = False) -> float | None:
        """Model FLOP utilisation at 4 N FLOP a token (frozen base: forward 2 N, backward 2 N).

        None where the peak is unknown (cpu). Attention and adapter FLOP are not counted.
        """
        if peak_flops <= 0 or self.hardware.chips == 0:
            return None
        n = self.model.params_active or self.model.params
        return 4 * n * self.tokens_per_second(padded=padded) / (peak_flops * self.hardware.chips)

    def cost(self) -> float:
        """Dollars of the whole wall clock, all chips."""
        return self.time.total / 3600 * self.hardware.chips * self.hardware.price.usd
