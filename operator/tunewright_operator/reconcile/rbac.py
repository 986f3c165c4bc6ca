"""The operator's rights, stated once: the kustomize roles and the chart's are written from here.

    python -m tunewright_operator.reconcile.rbac [--check]

Every verb stands beside what uses it. There is no Secret in the table, and nothing that a
namespaced operator could write outside of its namespaces.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
_HEADER = "# Written by `python -m tunewright_operator.reconcile.rbac`. Do not edit.\n"


@dataclass(frozen=True)
class Right:
    """Verbs on resources of one group, and why."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str


_WATCH = ("get", "list", "watch")
RIGHTS: tuple[Right, ...] = (
    Right("tunewright.dev", ("finetunejobs", "serveendpoints"), _WATCH, "what is reconciled"),
    Right("tunewright.dev", ("finetunejobs",), ("delete",), "spec.ttlSecondsAfterFinished"),
    Right("tunewright.dev", ("finetunejobs/status", "serveendpoints/status"), ("patch",), "the one write"),
    Right("batch", ("jobs",), (*_WATCH, "create", "delete"), "stages of one machine; made once, ended by us"),
    Right(
        "jobset.x-k8s.io", ("jobsets",), (*_WATCH, "create", "delete"), "stages of several machines; made once"
    ),
    Right("", ("pods",), _WATCH, "why a stage does not run, and when it ran"),
    Right(
        "", ("configmaps",), (*_WATCH, "create", "patch", "delete"),
        "configuration and progress; patch is also what a job's own Role may do to its one ConfigMap, and "
        "nobody can grant what they do not hold",
    ),
    Right("", ("services",), (*_WATCH, "create", "patch", "delete"), "endpoints, slices, previews of a rollout"),
    Right("apps", ("deployments",), (*_WATCH, "create", "patch", "delete"), "servers"),
    Right("", ("serviceaccounts",), ("get", "create"), "the account of a job that names none; is a named one there"),
    Right(
        "rbac.authorization.k8s.io", ("roles", "rolebindings"), ("get", "create"),
        "a job's right to patch its own progress ConfigMap",
    ),
    Right("", ("persistentvolumeclaims",), ("get",), "is a named claim there"),
    Right("networking.k8s.io", ("networkpolicies",), ("get", "create", "patch"), "what reaches a job's pods"),
    Right("policy", ("poddisruptionbudgets",), ("get", "create", "patch"), "endpoints"),
    Right(
        "autoscaling", ("horizontalpodautoscalers",), ("get", "create", "patch", "delete"), "spec.autoscaling"
    ),
    Right(
        "monitoring.googleapis.com", ("podmonitorings",), ("get", "create", "patch", "delete"),
        "metrics of servers and of training",
    ),
    Right(
        "monitoring.coreos.com", ("podmonitors",), ("get", "create", "patch", "delete"),
        "the same where the prometheus-operator scrapes",
    ),
    Right(
        "inference.networking.k8s.io", ("inferencepools",), ("get", "create", "patch", "delete"),
        "an endpoint picker in front of servers",
    ),
    Right("", ("events",), ("create", "list"), "a line for each transition; why pods were refused"),
)  # fmt: skip

CLUSTER: tuple[Right, ...] = (
    Right(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("list", "watch"),
        "JobSet may be installed later",
    ),
)
"""What a cluster-wide operator may do besides: read which kinds there are."""


def rules(rights: tuple[Right, ...]) -> list[dict[str, Any]]:
    """The rights as PolicyRules."""
    return [{"apiGroups": [r.group], "resources": list(r.resources), "verbs": list(r.verbs)} for r in rights]


def _text(rights: tuple[Right, ...], indent: str = "") -> str:
    lines = []
    for r in rights:
        lines.append(f"# {r.why}")
        lines.append(f'- apiGroups: ["{r.group}"]')
        lines.append(f"  resources: [{', '.join(r.resources)}]")
        lines.append(f"  verbs: [{', '.join(r.verbs)}]")
    return "".join(f"{indent}{line}\n" for line in lines)


def _role(kind: str, name: str, rights: tuple[Right, ...]) -> str:
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    return _HEADER + yaml.safe_dump(head, sort_keys=False) + "rules:\n" + _text(rights)


def files() -> dict[str, str]:
    """Content by path below the project."""
    made = {
        "manifests/overlays/cluster-wide/role.yaml": _role(
            "ClusterRole", "tunewright-operator", RIGHTS + CLUSTER
        ),
        "manifests/overlays/namespaced/role.yaml": _role("Role", "tunewright-operator", RIGHTS),
        "charts/tunewright/files/rules.yaml": _HEADER + _text(RIGHTS),
        "charts/tunewright/files/cluster-rules.yaml": _HEADER + _text(CLUSTER),
    }
    for crd in sorted((ROOT / "manifests/crds").glob("*.yaml")):
        if crd.name != "kustomization.yaml":
            made[f"charts/tunewright/files/crds/{crd.name}"] = crd.read_text(encoding="utf-8")
    return made


def stale() -> list[str]:
    """Paths whose file is not what `files` says."""
    return [
        path
        for path, text in files().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tunewright_operator.reconcile.rbac")
    parser.add_argument("--check", action="store_true", help="only say which files are stale")
    if parser.parse_args().check:
        for path in stale():
            print(f"{path} is stale", file=sys.stderr)
        return 1 if stale() else 0
    for path, text in files().items():
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
