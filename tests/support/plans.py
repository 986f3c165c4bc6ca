"""Plans whose pods are small shell scripts, for tests of whoever runs a plan."""

from __future__ import annotations

import json
from typing import Any

from tunewright_operator.plan.stage import Plan, Stage
from tunewright_workloads.contract.configs import Config


class Script(Config):
    """Configuration of a script; the fields that the runner looks for."""

    note: str = ""
    output: str = ""
    progress: str | None = "/var/tunewright/progress.json"


def script(
    name: str,
    code: str,
    *,
    config: Script | None = None,
    retries: int = 2,
    grace: int = 5,
    env: list[dict[str, Any]] | None = None,
    artifact: str | None = None,
    claim: str = "data",
    argv: list[str] | None = None,
    volumes: list[dict[str, Any]] | None = None,
) -> Stage:
    """A stage whose container runs `sh -c code`, with every kind of volume that a plan has."""
    config = config or Script()
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "containers": [
            {
                "name": name,
                "image": "none",
                "command": argv or ["/bin/sh", "-c", code],
                "env": env or [],
                "volumeMounts": [
                    {"name": "config", "mountPath": "/etc/tunewright"},
                    {"name": "work", "mountPath": "/var/tunewright"},
                    {"name": "claim", "mountPath": f"/mnt/claims/{claim}"},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
                "startupProbe": {
                    "httpGet": {"path": "/health", "port": 8000},
                    "periodSeconds": 1,
                    "failureThreshold": 20,
                },
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": f"it-{name}"}},
            {"name": "work", "emptyDir": {}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "tmp", "emptyDir": {}},
            *(volumes or []),
        ],
    }
    job: dict[str, Any] = {"backoffLimit": retries, "template": {"spec": spec}}
    data = {f"{name}.json": json.dumps(config.model_dump(mode="json", by_alias=True))}
    return Stage(
        name,
        (
            {"kind": "ConfigMap", "metadata": {"name": f"it-{name}"}, "data": data},
            {"kind": "Job", "metadata": {"name": f"it-{name}"}, "spec": job},
        ),
        config=config,
        artifact=artifact,
    )


def plan(
    *stages: Stage,
    name: str = "it",
    output: str = "file:///mnt/claims/data/merged",
    deadline: int | None = None,
) -> Plan:
    return Plan("FineTuneJob", "default", name, stages, output=output, deadline=deadline)
