# ruff: noqa: F811  (fixtures are imported by name)
"""Both kinds from start to end where Pod Security is enforced, as Argo CD and Flux see them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.argo import health

from . import pods
from .api import Cluster
from .operating import Operator, Space, operator  # noqa: F401


@pytest.fixture
def strict(operator: Operator, cluster: Cluster) -> Iterator[Space]:
    """A namespace that takes no pod that is not restricted."""
    name = cluster.create_namespace("strict", {"pod-security.kubernetes.io/enforce": "restricted"})
    yield Space(cluster, name)
    cluster.delete_namespace(name)


def shown(space: Space, wanted: str, kind: str = "FineTuneJob") -> str:
    """Waits for a health in Argo CD and returns its message."""
    space.cluster.wait_for(lambda: health(space.get(kind))[0] == wanted, f"{wanted} of {kind}", 60)
    return health(space.get(kind))[1]


def ended(space: Space, stage: str, code: int = 0) -> None:
    pods.finish(space.cluster, space.namespace, space.pod(stage), code)


def gone(space: Space, stage: str) -> None:
    """Waits until no pod of a stage is left, ending them as a kubelet would."""

    def there() -> bool:
        pods.end_deleted(space.cluster, space.namespace)
        return bool(space.pods(stage))

    space.cluster.wait_for(lambda: not there(), f"the end of the pods of {stage}", 30)


def test_every_pod_of_a_job_is_taken_and_argo_cd_follows(strict: Space, cluster: Cluster) -> None:
    rows = {"train": ["sample://faq"], "validation": ["gs://acme/held-back.jsonl"], "maxLength": 128}
    strict.job(dataset=rows, evaluation={})
    first = strict.pod("train")
    pods.run(cluster, strict.namespace, first)
    strict.phase("Training")
    shown(strict, "Progressing")
    strict.change({"suspend": True})
    strict.phase("Suspended")
    assert "spec.suspend" in shown(strict, "Suspended")
    gone(strict, "train")
    strict.change({"suspend": False})
    strict.phase("Provisioning")
    shown(strict, "Progressing")
    for stage in ("train", "merge", "evaluate"):
        ended(strict, stage)
    strict.phase("Succeeded")
    assert "gs://acme/models/bot/merged" in shown(strict, "Healthy")


def test_a_job_that_cannot_work_is_degraded(strict: Space) -> None:
    strict.job()
    ended(strict, "train", 2)
    strict.phase("Failed")
    assert "cannot work" in shown(strict, "Degraded")


def test_a_job_that_does_not_merge_names_its_adapter_by_digest(strict: Space) -> None:
    strict.job(output={"uri": "gs://acme/models/bot", "merge": False})
    strict.pod("train")
    strict.progress(step=100, done=True, artifacts={"adapter": "a" * 64, "dataset": "d" * 64})
    ended(strict, "train")
    artifacts = strict.phase("Succeeded")["artifacts"]
    assert artifacts["adapter"] == {"uri": "gs://acme/models/bot/checkpoints", "digest": "a" * 64}
    assert artifacts["datasetDigest"] == "d" * 64
    assert "merged" not in artifacts


def test_every_pod_of_an_endpoint_is_taken_and_argo_cd_follows(strict: Space, cluster: Cluster) -> None:
    strict.endpoint(model={"uri": "gs://acme/models/one"}, benchmark={})
    pods.run(cluster, strict.namespace, strict.pod("serve"))
    strict.phase("Verifying", "ServeEndpoint")
    shown(strict, "Progressing", "ServeEndpoint")
    ended(strict, "gate")
    strict.phase("Ready", "ServeEndpoint")
    assert "answers at" in shown(strict, "Healthy", "ServeEndpoint")
    ended(strict, "bench")
    strict.change({"replicas": 0}, "ServeEndpoint")
    gone(strict, "serve")
    strict.phase("Stopped", "ServeEndpoint")
    assert "scaled to zero" in shown(strict, "Suspended", "ServeEndpoint")


def test_an_endpoint_whose_model_is_refused_is_degraded(strict: Space, cluster: Cluster) -> None:
    strict.endpoint(model={"uri": "gs://acme/models/one"})
    pods.run(cluster, strict.namespace, strict.pod("serve"))
    ended(strict, "gate", 2)
    strict.phase("Failed", "ServeEndpoint")
    assert "refused by its gate" in shown(strict, "Degraded", "ServeEndpoint")
