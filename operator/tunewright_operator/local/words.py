"""What is said of a stage that ended: why, and what it leaves for the next run."""

from __future__ import annotations

import errno
import os

from tunewright_workloads.contract import exits


def last(stage: str) -> str:
    """What a stage does between SIGTERM and its end."""
    return "save its checkpoint" if stage == "train" else "end"


def kept(stage: str) -> str:
    """What a stage that was ended leaves for the next run."""
    kept = {
        "train": "its last checkpoint is kept and resumed from",
        "merge": "the shards that it finished are kept and not written again",
    }
    return kept.get(stage, "it starts again from its beginning")


def full(tail: str) -> str | None:
    """The system's word for a full disk or quota, where that is what a log ends with."""
    words = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
    return next((word for word in words if word in tail), None)


def reason(code: int) -> str:
    """What an exit code says beyond its number, to be put behind it."""
    if code == exits.KILLED:
        return " (killed, often because the machine ran out of memory)"
    return f" (ended by signal {code - 128})" if 128 < code < 160 else ""
