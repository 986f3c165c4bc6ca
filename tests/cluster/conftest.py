"""One control plane for the session, a namespace of its own for each test."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from . import addons, external, simulate
from .api import Cluster
from .build import UnavailableError
from .control import ControlPlane
from .external import External
from .operating import Operator, install

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker `cluster`, without saying so in each file."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Kubernetes with controllers and a scheduler and no kubelet, or the cluster the user named."""
    given = external.named()
    try:
        opened = External(given) if given else ControlPlane(scheduler=True)
    except UnavailableError as lack:
        pytest.skip(str(lack))
    with opened:
        yield opened


@pytest.fixture(scope="session")
def plane(cluster: Cluster) -> ControlPlane:
    """The same cluster, for tests that stop and start its processes: skipped when it is not ours."""
    if not isinstance(cluster, ControlPlane):
        pytest.skip(f"the cluster of {external.VARIABLE} is not ours to restart")
    return cluster


@pytest.fixture(scope="session")
def session_operator(cluster: Cluster) -> Iterator[Operator]:
    """One operator for the whole cluster; tests take it as `operator`."""
    install(cluster)
    with Operator(cluster) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace, deleted behind the test without waiting for it."""
    name = cluster.create_namespace()
    yield name
    cluster.delete_namespace(name)


@pytest.fixture(scope="session")
def batch() -> Iterator[Cluster]:
    """A second cluster, with JobSet and Kueue, whose labelled nodes have simulated kubelets.

    Apart from `cluster`, so that what a test finds installed does not depend on the tests before it.
    """
    try:
        given = external.named()
        opened = External(given) if given else ControlPlane(scheduler=True)
        with opened:
            if isinstance(opened, ControlPlane):
                addons.jobset(opened)
                addons.kueue(opened)
                simulate.kubelets(opened)
            else:
                _require(opened, "jobset.x-k8s.io", "kueue.x-k8s.io")
            yield opened
    except UnavailableError as lack:
        pytest.skip(str(lack))


@pytest.fixture
def batch_namespace(batch: Cluster) -> Iterator[str]:
    """A fresh namespace of `batch`."""
    name = batch.create_namespace()
    yield name
    batch.delete_namespace(name)


def _require(opened: Cluster, *groups: str) -> None:
    for group in groups:
        if not opened.exists(f"/apis/{group}"):
            pytest.skip(f"the cluster of {external.VARIABLE} does not serve {group}: install it there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the components said last: the reason is often only there."""
    report = yield
    if report.failed:
        used = getattr(item, "funcargs", {}).values()
        for plane in {id(one): one for one in used if isinstance(one, ControlPlane)}.values():
            report.sections.append(("cluster logs", plane.tails(8)))
    return report
