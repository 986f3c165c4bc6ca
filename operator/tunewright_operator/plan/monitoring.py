"""Who scrapes the metrics of our pods: whichever of the two kinds the cluster has.

PodMonitoring of Google Cloud Managed Prometheus (GoogleCloudPlatform/prometheus-engine, monitoring.googleapis.com/v1:
spec.selector, spec.endpoints[].port and interval), else PodMonitor of the prometheus-operator
(monitoring.coreos.com/v1: spec.selector, spec.podMetricsEndpoints[]).
"""

from __future__ import annotations

from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest

METRICS = "metrics"
"""Name of the port of whatever serves metrics and nothing else."""

PORT = 9464
"""Where training serves its metrics: the port that OpenTelemetry gives to Prometheus exporters."""


def watched(settings: Settings) -> bool:
    """Whether somebody will scrape."""
    return settings.pod_monitoring or settings.pod_monitor


def monitors(
    name: str, namespace: str, labels: dict[str, str], selector: dict[str, str], port: str, settings: Settings
) -> tuple[Manifest, ...]:
    """The object that has the pods with the labels `selector` scraped at their port of this name."""
    endpoint = {"port": port, "path": "/metrics", "interval": "15s"}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    found = {"matchLabels": selector}
    if settings.pod_monitoring:
        return (
            {
                "apiVersion": "monitoring.googleapis.com/v1",
                "kind": "PodMonitoring",
                "metadata": meta,
                "spec": {"selector": found, "endpoints": [endpoint]},
            },
        )
    if settings.pod_monitor:
        return (
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PodMonitor",
                # A Prometheus often takes only those that carry its label.
                "metadata": {**meta, "labels": {**settings.pod_monitor_labels, **labels}},
                "spec": {"selector": found, "podMetricsEndpoints": [endpoint]},
            },
        )
    return ()
