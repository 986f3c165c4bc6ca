"""Names of children, and the labels that find them."""

from __future__ import annotations

import hashlib
import re

LIMIT = 52
"""Characters of a Job's or Deployment's name: what Kubernetes appends to it for pods must fit 63."""

JOBSET_LIMIT = 40
"""Of a JobSet's: `<name>-<stage>-<job>-<pod>-<random>` must fit 63."""

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
JOB = "tunewright.dev/job"
ENDPOINT = "tunewright.dev/endpoint"
STAGE = "tunewright.dev/stage"
REVISION = "tunewright.dev/revision"
INDEX = "batch.kubernetes.io/job-completion-index"

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def child(name: str, suffix: str = "", limit: int = LIMIT) -> str:
    """`<name>-<suffix>` as a DNS label of at most `limit` characters.

    A name that does not fit (too long, with dots, beginning with a digit) is cut and gets a hash
    of the whole, so that two names never become one.
    """
    tail = f"-{suffix}" if suffix else ""
    if len(name) + len(tail) <= limit and _LABEL.fullmatch(name):
        return name + tail
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    plain = re.sub(r"[^-a-z0-9]", "-", name)
    if not plain[:1].isalpha():
        plain = f"t-{plain}"
    room = limit - len(tail) - len(mark) - 1
    return f"{plain[:room].rstrip('-')}-{mark}{tail}"


def label(name: str) -> str:
    """`name` as the value of a label: itself, or cut and hashed where it is too long."""
    return name if len(name) <= 63 else child(name, limit=63)


def labels(kind: str, name: str, component: str) -> dict[str, str]:
    """The labels of every child. `kind` is JOB or ENDPOINT."""
    return {
        NAME: "tunewright",
        INSTANCE: label(name),
        COMPONENT: component,
        MANAGED_BY: "tunewright",
        kind: label(name),
    }
