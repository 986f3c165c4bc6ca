"""`tunewright.json`: what a published model is made of.

It is written last into a model directory; a directory without it is an unfinished merge. The
serving gate and `verify` read it; nothing that is not needed to reproduce or to check a model
belongs in it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MANIFEST = "tunewright.json"
SCHEMA = "tunewright.dev/model/v1"


class _Record(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class FileDigest(_Record):
    """One published file."""

    size: int = Field(ge=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Base(_Record):
    """The base checkpoint that was merged into."""

    source: str
    revision: str | None = Field(None, description="Commit of the source, where it has commits")
    digest: str = Field(
        description="sha256 over names and digests of the base's weight files: the sha256 that the hub names, "
        "elsewhere the crc32c that Cloud Storage names"
    )


class Adapter(_Record):
    """The adapter that was merged."""

    source: str
    step: int | None = Field(None, description="Optimizer step of the checkpoint")
    digest: str = Field(description="sha256 over names, dtypes, shapes and bytes of its tensors")
    rank: int = Field(ge=1)
    alpha: float
    modules: int = Field(ge=0, description="Projections that were changed")


class Probe(_Record):
    """One prompt of the serving gate: what the merged model must generate greedily."""

    prompt: str
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: list[float] = Field(description="natural logarithm, one a generated token")


class Manifest(_Record):
    """The whole record. `files` holds every published file but this one, by relative path."""

    schema_: str = Field(SCHEMA, alias="schema")
    base: Base
    adapter: Adapter
    dtype: str = Field(description="dtype that changed tensors were rounded to, or 'keep'")
    dataset_digest: str | None = None
    files: dict[str, FileDigest]
    probes: list[Probe] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
