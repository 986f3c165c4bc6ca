"""What is observed of a FineTuneJob. The operator alone writes it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from tunewright_operator.api.base import Record
from tunewright_operator.api.conditions import Condition

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
