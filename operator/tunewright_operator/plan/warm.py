"""A Job that fills an endpoint's compile cache before its first server starts.

Its name is the cache's key (image, slice, arguments): a new version of the model that shares the key finds
the Job done, and the programs there.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tunewright_operator.plan import names
from tunewright_operator.plan.jobs import Rules, workload
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest, Stage
from tunewright_workloads.contract.accelerators import Slice
from tunewright_workloads.contract.configs import ServeConfig

STAGE = "warm"
RETRIES = 1
"""A failure costs half an hour of a slice, and the server itself can compile."""

_OF_A_SERVER = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")


def stage(
    name: str, namespace: str, config: ServeConfig, template: Manifest, rows: Slice, settings: Settings
) -> Stage:
    """The Job and its ConfigMap.

    template: the server's pod, whose ConfigMap is not named yet. The Job's differs in what makes a server of
    it (probes, ports, drain), and in its labels, by which no Service may find it.
    """
    assert config.compile_cache is not None
    key = PurePosixPath(config.compile_cache).name
    labels = names.labels(names.ENDPOINT, name, STAGE)
    child = names.child(name, f"{STAGE}-{key}")
    config_map: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": child, "namespace": namespace, "labels": labels},
        "immutable": True,
        "data": {"serve.json": config.text()},
    }
    server = template["spec"]["containers"][0]
    container = {k: v for k, v in server.items() if k not in _OF_A_SERVER}
    container |= {"name": STAGE, "command": [*server["command"], "--warm-up"]}
    volumes = [
        {**v, "configMap": {"name": child}} if "configMap" in v else v for v in template["spec"]["volumes"]
    ]
    pod: Manifest = {
        "metadata": {
            **template["metadata"],
            "labels": {**template["metadata"]["labels"], **labels, names.STAGE: STAGE},
        },
        "spec": {
            **template["spec"],
            "containers": [container, *template["spec"]["containers"][1:]],
            "volumes": volumes,
            "restartPolicy": "Never",
        },
    }
    made, _ = workload(
        name, f"{STAGE}-{key}", namespace, labels, pod, rows, Rules(retries=RETRIES), settings
    )  # fmt: skip
    return Stage(STAGE, (config_map, *made), config)
