"""The box for the session, or the cluster that the user named; a namespace of its own for each test."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.cluster import external
from tests.cluster.api import Cluster
from tests.cluster.build import UnavailableError
from tests.e2e.box import host
from tests.e2e.story import (  # noqa: F401  # fixtures
    chart,
    disturbed,
    installed,
    lanes,
    loaded,
    parts,
    queued,
    removed,
    rolled,
    undisturbed,
)

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker that everything in this folder carries."""
    config.addinivalue_line("markers", "e2e: needs a real node; `make e2e`")
    config.addinivalue_line("markers", "images: builds our Dockerfiles; `make test-images`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder without saying so in each file."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.images if item.path.stem == "test_images" else pytest.mark.e2e)


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose pods run: the box, or the one of TUNEWRIGHT_TEST_KUBECONFIG."""
    given, taken = external.named(), request.getfixturevalue("parts")
    with contextlib.ExitStack() as stack:
        try:
            if not given:
                stack.enter_context(host.alone())
            with taken.part("a node"):
                opened = external.External(given) if given else host.up()
        except UnavailableError as lack:
            pytest.skip(str(lack))
        yield stack.enter_context(opened)


@pytest.fixture
def box(node: Cluster) -> host.Box:
    """The box itself, for tests that use local images and the host's side of it."""
    if not isinstance(node, host.Box):
        pytest.skip(f"needs the box, and {external.VARIABLE} names another cluster")
    return node


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    """A fresh namespace in which Pod Security admits nothing but `restricted` pods."""
    name = node.create_namespace("e2e", {"pod-security.kubernetes.io/enforce": "restricted"})
    yield name
    node.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the components said last."""
    report = yield
    if report.failed and any(isinstance(used, host.Box) for used in getattr(item, "funcargs", {}).values()):
        report.sections.append(("box logs", host.tails(8)))
    return report
