"""What an operator is told at its start: flags, each with an environment variable of the same name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunewright_operator.plan.settings import Settings
from tunewright_workloads.contract import prices
from tunewright_workloads.contract.accelerators import ACCELERATORS
from tunewright_workloads.contract.faults import Fault, UserError, show


@dataclass(frozen=True)
class Options:
    """One operator.

    namespaces: what it watches; empty: the whole cluster.
    workers:    reconciliations at a time.
    resync:     seconds between two looks at everything, the safety net below the watches.
    pulse:      seconds between two comparisons of a watch with the API server.
    stall:      seconds that a watch may lag before the operator reports itself as not alive.
    """

    namespaces: tuple[str, ...] = ()
    workers: int = 16
    resync: float = 600.0
    pulse: float = 20.0
    stall: float = 120.0
    metrics: str = "0.0.0.0:8080"
    liveness: str = "http://0.0.0.0:8081/healthz"
    level: str = "INFO"
    kubeconfig: str | None = None
    plan: Settings = field(default_factory=Settings)


def read(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line; TUNEWRIGHT_<FLAG> stands for a flag that is not given."""
    defaults, images = Options(), Settings()
    parser = argparse.ArgumentParser(
        prog="python -m tunewright_operator.reconcile", description="Runs the Tunewright operator."
    )

    def flag(name: str, default: object, text: str, kind: type = str) -> None:
        preset = os.environ.get("TUNEWRIGHT_" + name.upper().replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=kind, default=kind(preset) if preset is not None else default, help=text
        )

    flag("namespaces", "", "comma-separated namespaces to serve; empty: the whole cluster")
    flag("workers", defaults.workers, "reconciliations at a time", int)
    flag("resync", defaults.resync, "seconds between two looks at everything", float)
    flag("pulse", defaults.pulse, "seconds between two checks that a watch still delivers", float)
    flag("stall", defaults.stall, "seconds of lag after which the operator is not alive", float)
    flag("metrics", defaults.metrics, "host:port of /metrics and /readyz")
    flag("liveness", defaults.liveness, "URL of the liveness probe")
    flag("log-level", defaults.level, "DEBUG, INFO, WARNING or ERROR")
    flag("kubeconfig", None, "kubeconfig to use outside of a pod")
    flag("registry", images.registry, "registry of our own images, with a slash at its end")
    flag("train-image", images.train_image, "image that trains, merges, evaluates, and serves on a CPU")
    flag("train-gpu-image", images.gpu_image, "image that trains on GPUs")
    for kind, image in images.serve_images.items():
        flag(f"serve-{kind}-image", image, f"image that serves with vLLM on {kind}")
    flag("endpoint-picker", None, "Service of the endpoint picker; empty: no InferencePool is made")
    flag("hpa-metric", images.hpa_metric, "pods metric with the number of waiting requests")
    flag("pod-monitor-labels", "", "key=value,... of PodMonitors: what a Prometheus selects them by")
    flag("pull-policy", images.pull_policy, "IfNotPresent, Always or Never")
    flag("prices", "", "JSON file with prices that stand before the catalog's")
    flag("scratch-class", None, "storage class of scratch volumes; empty: the node's disk")
    found = parser.parse_args(arguments)
    return Options(
        namespaces=tuple(n.strip() for n in found.namespaces.split(",") if n.strip()),
        workers=found.workers,
        resync=found.resync,
        pulse=found.pulse,
        stall=found.stall,
        metrics=found.metrics,
        liveness=found.liveness,
        level=found.log_level.upper(),
        kubeconfig=found.kubeconfig or None,
        plan=Settings(
            registry=found.registry,
            train_image=found.train_image,
            gpu_image=found.train_gpu_image,
            serve_images={kind: getattr(found, f"serve_{kind}_image") for kind in images.serve_images},
            endpoint_picker=found.endpoint_picker or None,
            hpa_metric=found.hpa_metric,
            pod_monitor_labels=_labels(found.pod_monitor_labels),
            pull_policy=found.pull_policy,
            scratch_class=found.scratch_class or None,
            prices=prices.read(Path(found.prices), tuple(ACCELERATORS)) if found.prices else {},
        ),
    )


def _labels(text: str) -> dict[str, str]:
    """`a=b,c=d`. Raises UserError naming the part that is none."""
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise UserError(Fault("pod-monitor-labels", "must be key=value,...", show(part)))
        found[key] = value
    return found
