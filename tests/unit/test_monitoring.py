"""The chart's alerts and dashboard ask for metrics and labels that somebody really serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tunewright_operator.observe.ledger import Ledger, Run
from tunewright_operator.reconcile.cache import Cache
from tunewright_operator.reconcile.metrics import Metrics
from tunewright_operator.reconcile.resources import ENDPOINT, FINETUNEJOB
from tunewright_workloads.train import board

LEDGER = Ledger(open=(Run("u", "train", 4, "2026-01-01T00:00:00Z"),)).dump()
FILES = Path(__file__).parents[2] / "charts/tunewright/files"


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        for number, target in enumerate(panel["targets"]):
            yield f"{panel['title']} {number}", target["expr"].replace("$namespace", ".*")


ALL = dict(expressions())


def exported(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Sample name -> its labels, as scraped."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    cache = Cache()
    for resource, phase in ((FINETUNEJOB, "Training"), (ENDPOINT, "Failed")):
        cache.put(
            resource,
            {
                "metadata": {"namespace": "team-a", "name": "bot", "uid": phase, "resourceVersion": "1"},
                "spec": {"accelerator": {"type": "v5p"}},
                "status": {"phase": phase, "cost": {"spentUSD": 1.0}, "ledger": LEDGER},
            },
        )
    metrics = Metrics()
    metrics.watch(cache, lambda: 0, lambda: 0.0)
    metrics.reconcile.labels("FineTuneJob").observe(0.1)
    metrics.errors.labels("FineTuneJob", "Conflict").inc()
    metrics.transitions.labels("FineTuneJob", "Failed").inc()
    metrics.count("GET", "jobs", 200)
    watch = board.Prometheus(0, "team-a/bot", padded=100, flops=4e9, peak=1e12, memory=lambda: 1)
    try:
        watch({"event": "step", "step": 1, "epoch": 0.1, "loss": 1.0, "gradNorm": 1.0, "learningRate": 1e-3,
               "useful": 90, "seconds": 0.5})  # fmt: skip
        watch({"event": "evaluation", "step": 1, "evalLoss": 0.7})
    finally:
        watch.close()
    return exported(metrics.registry) | exported(watch.registry)


def selectors(node: Any) -> Iterator[tuple[Any, frozenset[str]]]:
    """Every vector selector below a node, with the labels that aggregations around it keep."""
    if isinstance(node, promql.VectorSelector):
        yield node, frozenset()
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector, frozenset()
    elif isinstance(node, promql.AggregateExpr):
        kept = frozenset(node.modifier.labels) if node.modifier else frozenset()
        for selector, labels in selectors(node.expr):
            yield selector, labels | kept
    elif isinstance(node, promql.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql.ParenExpr):
        yield from selectors(node.expr)
    else:
        assert isinstance(node, promql.NumberLiteral), f"{type(node).__name__} is not looked into"


@pytest.mark.parametrize("name", ALL, ids=str)
def test_every_expression_asks_for_what_is_served(name: str, served: dict[str, set[str]]) -> None:
    found = list(selectors(promql.parse(ALL[name])))
    assert found
    for selector, kept in found:
        assert selector.name in served
        asked = kept | {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= served[selector.name], f"{selector.name} has no label {asked - served[selector.name]}"


def test_no_metric_has_a_label_that_a_scraper_sets_itself(served: dict[str, set[str]]) -> None:
    taken = {"namespace", "job", "instance", "pod", "container", "node", "cluster", "location", "project_id"}
    assert not {name: labels & taken for name, labels in served.items() if labels & taken}
