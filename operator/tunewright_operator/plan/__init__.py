"""Pure: a validated spec and settings -> the children, as plain manifests. No client, no clock, no files."""

from __future__ import annotations

from tunewright_operator.plan.finetune import OPERATOR_FIELDS, job
from tunewright_operator.plan.serving import endpoint
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest, Plan, Stage

__all__ = ["OPERATOR_FIELDS", "Manifest", "Plan", "Settings", "Stage", "endpoint", "job"]
