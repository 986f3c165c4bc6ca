"""Kubelets that only pretend: kwok takes pods on labelled nodes through their phases by itself.

A pod there turns Running and Ready at once, ends when its annotations say so, and goes away when it is
deleted. Nodes without the label are left to `pods`, which sets every status by hand.
"""

from __future__ import annotations

from pathlib import Path

from . import build
from .control import ControlPlane
from .process import Process, plain_environment

LABEL = "tests.tunewright.dev/simulated"
"""Give it as labels={LABEL: "true"} to nodes.fake_tpu_nodes."""

FINISH_AFTER = "tests.tunewright.dev/finish-after"
EXIT_CODE = "tests.tunewright.dev/exit-code"

_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)


def kubelets(plane: ControlPlane) -> None:
    """Starts kwok for the nodes that carry LABEL."""
    stages = build.folder("kwok") / "stages"
    files = [*(stages / stage for stage in _STAGES), Path(__file__).with_name("stage.yaml")]
    command: list[str | Path] = [
        build.binary("kwok"),
        f"--kubeconfig={plane.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={LABEL}=true",
        "--node-lease-duration-seconds=40",
        "--cidr=10.245.0.0/16",
        "--node-ip=10.245.255.254",
        *(f"--config={file}" for file in files),
    ]
    plane.run(Process("kwok", command, plane.logs / "kwok.log", environment=plain_environment()))
