"""Prometheus metrics. What can be read from the cache is read when somebody scrapes.

A resource's namespace is the label `resource_namespace`: `namespace`, `job`, `pod` and `instance` are set by
whoever scrapes, for the operator's own pod, and would push a label of ours aside as `exported_namespace`.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tunewright_operator.observe.ledger import Ledger
from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.resources import ENDPOINT, FINETUNEJOB

_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All metrics of one operator, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile = Histogram(
            "tunewright_reconcile_seconds",
            "Duration of one reconciliation.",
            ["kind"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.errors = Counter(
            "tunewright_reconcile_errors",
            "Reconciliations that failed and come again.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.requests = Counter(
            "tunewright_api_requests",
            "Requests to the API server; code 0: no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.transitions = Counter(
            "tunewright_transitions", "Changes of phase.", ["kind", "phase"], registry=self.registry
        )  # fmt: skip

    def count(self, verb: str, plural: str, status: int) -> None:
        """The client's hook."""
        self.requests.labels(verb, plural, str(status)).inc()

    def watch(self, cache: Cache, depth: Callable[[], int], lag: Callable[[], float]) -> None:
        """Adds what the cache shows."""
        self.registry.register(_Snapshot(cache, depth, lag))


class _Snapshot(Collector):
    def __init__(self, cache: Cache, depth: Callable[[], int], lag: Callable[[], float]) -> None:
        self.cache, self.depth, self.lag = cache, depth, lag

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("tunewright_queue_depth", "Resources that wait for a worker.", self.depth())
        yield GaugeMetricFamily(
            "tunewright_watch_lag_seconds", "Age of the oldest change that a watch has not shown.", self.lag()
        )
        yield GaugeMetricFamily("tunewright_cache_objects", "Objects in the cache.", len(self.cache))
        for name, what, resource in (
            ("tunewright_jobs", "FineTuneJobs by phase.", FINETUNEJOB),
            ("tunewright_endpoints", "ServeEndpoints by phase.", ENDPOINT),
        ):
            family = GaugeMetricFamily(name, what, labels=["resource_namespace", "phase"])
            tally = Tally(
                (o["metadata"].get("namespace", ""), o["status"].get("phase", "Pending"))
                for o in self.cache.all(resource)
            )
            for labels, number in sorted(tally.items()):
                family.add_metric(labels, number)
            yield family
        chips: Tally[tuple[str, str]] = Tally()
        dollars: dict[str, float] = {}
        for job in self.cache.all(FINETUNEJOB):
            space = job["metadata"].get("namespace", "")
            kind = job["spec"].get("accelerator", {}).get("type", "")
            chips[space, kind] += Ledger.load(job["status"].get("ledger")).chips
            dollars[space] = dollars.get(space, 0.0) + job["status"].get("cost", {}).get("spentUSD", 0.0)
        held = GaugeMetricFamily(
            "tunewright_chips", "Chips that jobs hold.", labels=["resource_namespace", "type"]
        )
        for labels, number in sorted(chips.items()):
            held.add_metric(labels, number)
        yield held
        spent = GaugeMetricFamily(
            "tunewright_spent_usd",
            "US dollars that the existing jobs have cost so far.",
            labels=["resource_namespace"],
        )
        for space, amount in sorted(dollars.items()):
            spent.add_metric([space], amount)
        yield spent
