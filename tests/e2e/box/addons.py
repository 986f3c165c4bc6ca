"""JobSet and Kueue in the box: their own charts, unchanged, and their managers as pods.

Certificates, webhooks and the visibility API take the way they take in any cluster, through Services.
"""

from __future__ import annotations

from tests.cluster import build

from . import images
from .host import Box

_TAG = "tests"

# Half a core each by default, which would leave a small machine none for the pods under test.
_CPU = "resources.requests.cpu=50m"


def jobset(box: Box) -> None:
    """Installs JobSet, unless it is there, and returns once its manager is ready."""
    _install(
        box,
        "jobset",
        "image.repository=localhost/jobset",
        f"image.tag={_TAG}",
        "image.pullPolicy=Never",
        f"controller.{_CPU}",
    )


def kueue(box: Box) -> None:
    """Installs Kueue, unless it is there, and returns once its manager is ready."""
    manager = "controllerManager.manager"
    _install(
        box,
        "kueue",
        f"{manager}.image.repository=localhost/kueue",
        f"{manager}.image.tag={_TAG}",
        f"{manager}.image.pullPolicy=Never",
        f"{manager}.{_CPU}",
    )


def _install(box: Box, name: str, *values: str) -> None:
    box.load(images.static(build.binary(name), f"localhost/{name}:{_TAG}", "manager"))
    given = [part for value in values for part in ("--set", value)]
    where = ["--namespace", f"{name}-system", "--create-namespace", "--wait", "--timeout", "5m"]
    box.helm("upgrade", "--install", name, build.folder(name) / "chart", *where, *given)
