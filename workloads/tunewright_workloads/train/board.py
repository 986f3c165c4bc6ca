"""Where a run can be watched from outside: Prometheus on /metrics, TensorBoard's event files, a picture.

All three follow `metrics.jsonl`'s lines; none of them is needed to train or to resume.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import prometheus_client as prometheus

from tunewright_workloads.contract.faults import Fault, UserError

TENSORBOARD, CURVE = "tensorboard", "learning-curve.png"

Line = dict[str, Any]
_NAMES = {
    "loss": ("loss", "Token-weighted mean loss of the last step, nats"),
    "gradNorm": ("gradient_norm", "Global norm of the last step's gradient, before clipping"),
    "learningRate": ("learning_rate", "Learning rate of the last step"),
    "evalLoss": ("validation_loss", "Token-weighted mean loss on the validation rows, nats"),
    "step": ("step", "Optimizer steps done"),
    "epoch": ("epoch", "Passes over the training data"),
    "seconds": ("step_seconds", "Wall time of the last step"),
}


class Prometheus:
    """Gauges of one run under `tunewright_train_*`, served until `close`.

    padded: positions of a batch; flops: model FLOP of a useful token; peak: FLOP/s of all chips, 0
    where it is not known; memory: bytes in use on the fullest device, or None where it is not known.
    The label is `finetunejob`: `job` belongs to whoever scrapes.
    """

    def __init__(
        self, port: int, job: str, *, padded: int, flops: float, peak: float, memory: Callable[[], int | None]
    ) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.padded, self.flops, self.peak, self.memory = padded, flops, peak, memory
        self._job = job
        self._gauges: dict[str, prometheus.Gauge] = {}
        try:
            self._server, self._thread = prometheus.start_http_server(port, registry=self.registry)
        except OSError as error:
            raise UserError(
                Fault("metricsPort", f"cannot be listened on: {error.strerror}", str(port))
            ) from None

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def set(self, name: str, text: str, value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = prometheus.Gauge(
                f"tunewright_train_{name}", text, ["finetunejob"], registry=self.registry
            )
        self._gauges[name].labels(self._job).set(value)

    def __call__(self, line: Line) -> None:
        for key, (name, text) in _NAMES.items():
            if line.get(key) is not None and line["event"] in ("step", "evaluation"):
                self.set(name, text, line[key])
        if line["event"] != "step" or not line["seconds"]:
            return
        rate = line["useful"] / line["seconds"]
        self.set("tokens_per_second", "Useful tokens a second in the last step", rate)
        self.set(
            "useful_share",
            "Share of the last batch's positions that hold a token",
            line["useful"] / self.padded,
        )
        if self.peak:
            self.set(
                "mfu", "Model FLOP utilisation at 4 N FLOP a useful token", rate * self.flops / self.peak
            )
        used = self.memory()
        if used is not None:
            self.set("memory_bytes", "Peak memory of the fullest device", used)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._writer = _writer_class()(logdir=str(directory), flush_secs=30)

    def __call__(self, line: Line) -> None:
        for key, (name, _) in _NAMES.items():
            if key != "step" and line.get(key) is not None:
                self._writer.add_scalar(f"train/{name}", line[key], line["step"])

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _writer_class() -> Any:
    """tensorboardX's writer. It imports PyTorch where it finds it, seconds for nothing here."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hidden:
            del sys.modules["torch"]
    return SummaryWriter


def draw(lines: Sequence[Line], path: Path, title: str) -> None:
    """The learning curve as a PNG: loss by step, validation loss where there is any."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for event, key, style, label in (
        ("step", "loss", "-", "training"),
        ("evaluation", "evalLoss", "o-", "validation"),
    ):
        points = [(line["step"], line[key]) for line in lines if line["event"] == event]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=4)
    axes.set(title=title, xlabel="step", ylabel="loss (nats/token)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, format="png", dpi=110)
    temporary.replace(path)
