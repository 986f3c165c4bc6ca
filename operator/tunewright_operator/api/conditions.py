"""Conditions, as Kubernetes, kstatus, Argo CD and `kubectl wait` understand them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tunewright_operator.api.base import Record


class Condition(Record):
    """One `metav1.Condition`."""

    type: str = Field(max_length=316, description="Ready, Reconciling, Stalled, and others by name.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Ready is Unknown on the way and False only when it needs somebody."
    )
    reason: str = Field(max_length=1024, description="One word in CamelCase, for programs.")
    message: str = Field("", max_length=32768, description="What happened and what to do, for people.")
    observed_generation: int | None = Field(None, ge=0, description="The generation that it speaks of.")
    last_transition_time: datetime = Field(description="When `status` last changed.")
