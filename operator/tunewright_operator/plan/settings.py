"""What a plan depends on besides the spec: images and what the cluster has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tunewright_workloads import __version__
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.prices import Book

VERSION = __version__

SERVE_IMAGES = {kind: f"tunewright/serve-{kind}:{VERSION}" for kind in ("cpu", "tpu", "gpu")}


@dataclass(frozen=True)
class Settings:
    """One value for a whole operator, or for the command line.

    registry:     put before the names of our own images, with a slash at its end.
    train_image:  trains, merges, evaluates, and serves on a CPU.
    gpu_image:    trains on GPUs, in PyTorch.
    serve_images: serve with vLLM, by kind of accelerator: vLLM's image with our workloads on top.
    jobset:       the JobSet CRD is installed: slices of several machines use it.
    pod_monitoring: the CRD of Google Cloud Managed Prometheus is installed.
    pod_monitor:  the CRD of the prometheus-operator is installed.
    pod_monitor_labels: labels by which a Prometheus knows the PodMonitors that it takes.
    endpoint_picker: Service of the endpoint picker of an InferencePool; None plans no pool.
    hpa_metric:   name of the pods metric under which the metrics adapter offers the number of waiting
                  requests. The default is that of Google's Custom Metrics Stackdriver Adapter
                  (docs.cloud.google.com, Managed Service for Prometheus, Horizontal Pod autoscaling).
    scratch_class: storage class of the scratch volume; None uses the node's own disk.
    program:      which of the two training programs runs: auto is PyTorch on GPUs and JAX elsewhere;
                  torch is PyTorch on CPUs as well, to compare the two.
    prices:       prices by accelerator and model that stand before the catalog's.
    local:        the plan is run as processes on this machine, where file:// is the user's disk.
    """

    registry: str = ""
    train_image: str = f"tunewright/train:{VERSION}"
    gpu_image: str = f"tunewright/train-gpu:{VERSION}"
    serve_images: Mapping[str, str] = field(default_factory=lambda: dict(SERVE_IMAGES))
    pull_policy: str = "IfNotPresent"
    jobset: bool = True
    pod_monitoring: bool = False
    pod_monitor: bool = False
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    endpoint_picker: str | None = None
    hpa_metric: str = "prometheus.googleapis.com|vllm:num_requests_waiting|gauge"
    scratch_class: str | None = None
    program: Literal["auto", "torch"] = "auto"
    prices: Book = field(default_factory=dict)
    local: bool = False

    def __post_init__(self) -> None:
        if self.registry and not self.registry.endswith("/"):
            raise UserError(Fault("registry", "must end with /", show(self.registry)))
        if self.pull_policy not in ("IfNotPresent", "Always", "Never"):
            raise UserError(
                Fault("pullPolicy", "must be IfNotPresent, Always or Never", show(self.pull_policy))
            )

    def train(self, kind: str) -> str:
        """The image that trains on `cpu`, `tpu` or `gpu`; it also merges, evaluates and measures."""
        return self.registry + (self.gpu_image if kind == "gpu" else self.train_image)

    def torch(self, kind: str) -> bool:
        """Whether training on `cpu`, `tpu` or `gpu` runs the PyTorch program."""
        return kind == "gpu" or (self.program == "torch" and kind == "cpu")

    def serve(self, kind: str) -> str:
        """The image that serves on `cpu`, `tpu` or `gpu`."""
        return self.registry + self.serve_images[kind]
