"""The story of a quickstart on a real node, from the Dockerfiles to `helm uninstall`, as fixtures.

Each part happens once, and every test looks at what one of them left behind. Two lanes run side by
side, since most of the time is waiting for pods: in one the quickstart as it is and then the rollouts
of its endpoint, in the other the job that is disturbed and then the one in a queue.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster import external
from tests.cluster.api import Cluster, KubectlError, Object, condition
from tests.e2e import rolling
from tests.e2e.box import addons, host, images
from tests.e2e.looking import (
    CLAIM,
    EVERY,
    JOB,
    NAME,
    QUICKSTART,
    ROOT,
    checkpoints,
    jobs_of,
    leaving,
    losses,
    objects,
    of_job,
    output,
    resource,
    tell,
)
from tests.e2e.parts import Parts
from tests.e2e.pods import Pods, pod
from tests.e2e.watching import Watch, distinct

CHART = ROOT / "charts/tunewright"
SYSTEM = "tunewright-system"
RELEASE = "tunewright"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
QUESTION = "What happens to rows that are too long?"
PATIENCE = 900.0
"""Seconds for anything that trains: a small machine may be busy with something else as well."""

SMALL = {"podTemplate": {"resources": {"requests": {"cpu": "100m"}}}}
"""What the second lane's jobs ask for: two cores hold them and a rollout's servers at once."""

ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "temperature": 0, "max_tokens": 128,
        "messages": [{"role": "user", "content": sys.argv[3]}]}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"])
"""


# -- the cluster and the operator -----------------------------------------------------------------


@pytest.fixture(scope="session")
def parts() -> Iterator[Parts]:
    """The times; told once more when everything is over."""
    taken = Parts()
    yield taken
    print(f"\n\n{taken.table()}", flush=True)


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as it is when the images are built: an edit meanwhile is no part of the upgrade."""
    return shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / CHART.name)


@pytest.fixture(scope="session", autouse=True)
def loaded(request: pytest.FixtureRequest) -> Iterator[Future[None] | None]:
    """Our images, of our Dockerfiles, under the names that the chart gives them, on their way into the box.

    Begun before the first test, because it takes as long as the tests of the box and leaves the processor
    to them. None where no test of this run wants the operator.
    """
    wanted = any("installed" in item.fixturenames for item in request.session.items)
    if not wanted or external.named():
        yield None
        return
    box = request.getfixturevalue("node")
    chart, parts = request.getfixturevalue("chart"), request.getfixturevalue("parts")
    pool = ThreadPoolExecutor(1)
    try:
        yield pool.submit(_load, box, chart, parts)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _load(box: host.Box, chart: Path, parts: Parts) -> None:
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    for name, arguments in (("operator", {}), ("train", {"LOCK": "train"})):
        with parts.part(f"build Dockerfile.{name}"):
            tag = f"localhost/tunewright/{name}:{version}"
            archive = images.build(ROOT / f"Dockerfile.{name}", ROOT, tag, arguments)
        with parts.part(f"load {archive.name}, {archive.stat().st_size >> 20} MB"):
            box.load(archive)


@dataclass
class Installed:
    """A box with our operator in it. before: what was there besides, in no namespace."""

    box: host.Box
    before: set[str]


@pytest.fixture(scope="session")
def installed(node: Cluster, loaded: Future[None] | None, chart: Path, parts: Parts) -> Installed:
    """The operator, from the chart and its defaults; only the registry is said."""
    if loaded is None:
        pytest.skip(f"its images and its volume are the box's, and {external.VARIABLE} names another cluster")
    assert isinstance(node, host.Box)
    node.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM, "labels": RESTRICTED}})
    with parts.part("Kueue, of its own chart"):
        addons.kueue(node)
    before = objects(node)
    with parts.part("the last image"):
        loaded.result()
    with parts.part("helm install"):
        where = ["--namespace", SYSTEM, "--wait", "--timeout", "5m"]
        node.helm("install", RELEASE, chart, *where, "--set", "image.registry=localhost/")
    return Installed(node, before)


# -- one lane: the quickstart, then the rollouts of its endpoint ----------------------------------


@dataclass
class Done:
    """A finished run. jobs, endpoints: every status that was seen; pods: of the job, as they ended;
    resumed: the steps after which it went on; kept: uids of Jobs on both sides of an upgrade."""

    namespace: str
    folder: Path
    before: set[str]
    jobs: list[Object] = field(default_factory=list)
    endpoints: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    table: str = ""
    answers: list[str] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


def stalled(run: Done) -> list[object]:
    """What a run said it needed somebody for."""
    found = [condition({"status": one}, "Stalled") for one in run.jobs]
    return distinct([one and (one["reason"], one["message"]) for one in found])


def _undisturbed(box: host.Box, parts: Parts) -> Done:
    namespace, before = place(box)
    with Watch(box, "finetunejobs", namespace) as jobs, Watch(box, "serveendpoints", namespace) as endpoints:
        with parts.part("kubectl apply to a published model"):
            box.kubectl("apply", "-n", namespace, "-f", QUICKSTART)
            awaited(box, namespace, "finetunejob")
        done = Done(namespace, output(box, namespace), before, pods=of_job(box, namespace))
        tell(done.pods)
        with parts.part("published model to a ready endpoint"):
            awaited(box, namespace, "serveendpoint")
        done.jobs, done.endpoints = jobs.seen(NAME), endpoints.seen(NAME)
    done.table = box.kubectl("get", "finetunejobs", "-n", namespace)
    with parts.part("a question from a pod, by the Service's name"):
        url = resource(box, "serveendpoints", namespace)["status"]["url"]
        code, printed = Pods(box, namespace).run(pod("asks", "python", "-c", ASK, url, NAME, QUESTION), 300)
        assert code == 0, printed
        done.answers.append(printed.strip())
    box.kubectl("delete", "pod", "asks", "-n", namespace, "--wait=true")
    return done


# -- the other lane: jobs from which something is taken away ---------------------------------------


def _disturbed(box: host.Box, chart: Path, parts: Parts) -> Done:
    namespace, before = place(box)
    job = ["finetunejob", NAME, "-n", namespace]
    wanted = {**JOB, "spec": {**JOB["spec"], **SMALL}}

    def suspend(value: bool) -> None:
        box.kubectl("patch", *job, "--type=merge", "-p", json.dumps({"spec": {"suspend": value}}))

    def gone(name: str) -> bool:
        return name not in [one["metadata"]["name"] for one in of_job(box, namespace)]

    with Watch(box, "finetunejobs", namespace) as jobs:
        with parts.part("apply again, suspended in the middle"):
            box.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all([CLAIM, wanted]))
            box.wait_for(lambda: bool(of_job(box, namespace)), "the first pod", PATIENCE)
            box.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "-n", namespace)
            done = Done(namespace, output(box, namespace), before)
            with held(box, namespace, done.folder, EVERY):
                suspend(True)
                box.wait_for(partial(leaving, box, namespace), "the deletion of the suspended pod", PATIENCE)
            awaited(box, namespace, "finetunejob", "jsonpath={.status.phase}=Suspended")
            box.wait_for(lambda: not of_job(box, namespace), "the end of the suspended pod", PATIENCE)
        done.resumed.append(checkpoints(done.folder)[-1])
        done.table = box.kubectl("get", *job)
        with parts.part("resumed, its pod deleted in the middle"):
            suspend(False)
            with held(box, namespace, done.folder, done.resumed[0] + 1):
                (robbed,) = [one["metadata"]["name"] for one in of_job(box, namespace)]
                box.kubectl("delete", "pod", robbed, "-n", namespace, "--wait=false")
                box.wait_for(partial(leaving, box, namespace), "the deletion of the pod", PATIENCE)
            box.wait_for(partial(gone, robbed), "the end of the deleted pod", PATIENCE)
            done.resumed.append(checkpoints(done.folder)[-1])
        with parts.part("the operator upgraded, to the end"):
            done.kept = jobs_of(box, namespace)
            values = ["--reuse-values", "--set", "operator.logLevel=DEBUG"]
            box.helm("upgrade", RELEASE, chart, "--namespace", SYSTEM, "--wait", "--timeout", "5m", *values)
            awaited(box, namespace, "finetunejob")
            done.kept = {name for name in done.kept if name in jobs_of(box, namespace)}
        done.jobs, done.pods = jobs.seen(NAME), of_job(box, namespace)
        tell(done.pods)
    return done


def _queued(box: host.Box, parts: Parts) -> Done:
    namespace, _ = place(box)
    kueue = "kueue.x-k8s.io/v1beta2"
    clusterqueue = f"/apis/{kueue}/clusterqueues/{namespace}"
    quota = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi"}
    flavor = {"name": namespace, "resources": [{"name": k, "nominalQuota": v} for k, v in quota.items()]}
    box.apply(
        {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": namespace}},
        {
            "apiVersion": kueue,
            "kind": "ClusterQueue",
            "metadata": {"name": namespace},
            "spec": {
                "namespaceSelector": {},
                "stopPolicy": "Hold",
                "resourceGroups": [{"coveredResources": [*quota], "flavors": [flavor]}],
            },
        },
        {
            "apiVersion": kueue,
            "kind": "LocalQueue",
            "metadata": {"name": "team", "namespace": namespace},
            "spec": {"clusterQueue": namespace},
        },
    )
    before = objects(box, namespace)
    job = {**JOB, "spec": {**JOB["spec"], **SMALL, "queue": {"name": "team"}}}

    def phase(wanted: str) -> None:
        awaited(box, namespace, "finetunejob", f"jsonpath={{.status.phase}}={wanted}")

    with Watch(box, "finetunejobs", namespace) as jobs:
        with parts.part("in a queue, admitted, evicted in the middle"):
            box.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all([CLAIM, job]))
            phase("Queued")
            assert not of_job(box, namespace)
            box.patch(clusterqueue, {"spec": {"stopPolicy": "None"}})
            phase("Training")
            done = Done(namespace, output(box, namespace), before)
            with held(box, namespace, done.folder, EVERY):
                box.patch(clusterqueue, {"spec": {"stopPolicy": "HoldAndDrain"}})
                box.wait_for(partial(leaving, box, namespace), "the eviction of the pod", PATIENCE)
            phase("Queued")
            box.wait_for(lambda: not of_job(box, namespace), "the end of the evicted pod", PATIENCE)
            done.resumed.append(checkpoints(done.folder)[-1])
        with parts.part("admitted again, to the end"):
            box.patch(clusterqueue, {"spec": {"stopPolicy": "None"}})
            awaited(box, namespace, "finetunejob")
        done.jobs = jobs.seen(NAME)
    box.kubectl("delete", "-n", namespace, "-f", QUICKSTART, "--ignore-not-found")
    for kind in ("clusterqueues", "resourceflavors"):
        box.request("DELETE", f"/apis/{kueue}/{kind}/{namespace}")
    return done


@contextlib.contextmanager
def held(box: host.Box, namespace: str, folder: Path, step: int) -> Iterator[None]:
    """Holds a namespace's trainer still once it is past `step`: a fast machine would be done before kubectl
    is."""
    box.wait_for(lambda: any(done >= step for done, _ in losses(folder)), f"step {step}", PATIENCE)
    uids = [one["metadata"]["uid"] for one in of_job(box, namespace)]

    def ours(pid: str) -> bool:
        return any(uid in box.inside("cat", f"/proc/{pid}/cgroup") for uid in uids)

    found = box.inside("pgrep", "--full", "tunewright_workloads.train --config").split()
    pids = [pid for pid in found if ours(pid)]
    assert pids, f"no trainer among {found} is in a pod of {uids}"
    box.inside("kill", "-STOP", *pids)
    try:
        yield
    finally:
        box.inside("kill", "-CONT", *pids)


# -- the lanes ------------------------------------------------------------------------------------


@dataclass
class Lanes:
    """What becomes of each run."""

    undisturbed: Future[Done]
    rolled: Future[rolling.Rolled]
    disturbed: Future[Done]
    queued: Future[Done]


@pytest.fixture(scope="session")
def lanes(
    installed: Installed, chart: Path, parts: Parts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lanes]:
    """Starts both lanes."""
    box, work = installed.box, tmp_path_factory.mktemp("models")
    first, second = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    try:
        undisturbed = first.submit(_undisturbed, box, parts)

        def rolled() -> rolling.Rolled:
            done = undisturbed.result()
            return rolling.story(box, done.namespace, done.folder, work, parts)

        yield Lanes(
            undisturbed,
            first.submit(rolled),
            second.submit(_disturbed, box, chart, parts),
            second.submit(_queued, box, parts),
        )
    finally:
        for pool in (first, second):
            pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(scope="session")
def undisturbed(lanes: Lanes) -> Done:
    """The quickstart as it is: applied with kubectl, awaited, asked."""
    return lanes.undisturbed.result()


@pytest.fixture(scope="session")
def rolled(lanes: Lanes) -> rolling.Rolled:
    """Its endpoint led to another right model and to wrong ones, while clients ask without pause."""
    return lanes.rolled.result()


@pytest.fixture(scope="session")
def disturbed(lanes: Lanes) -> Done:
    """The same job, suspended and resumed in the middle of training, and then robbed of its pod."""
    return lanes.disturbed.result()


@pytest.fixture(scope="session")
def queued(lanes: Lanes) -> Done:
    """The same job in a queue that is closed at first, and closed once more in the middle of training."""
    return lanes.queued.result()


# -- the end --------------------------------------------------------------------------------------


@dataclass
class Left:
    """What was there of us: after the resources were deleted, after the chart was, after the CRDs were."""

    deleted: dict[str, set[str]] = field(default_factory=dict)
    system: set[str] = field(default_factory=set)
    uninstalled: set[str] = field(default_factory=set)
    at_last: set[str] = field(default_factory=set)
    running: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def removed(
    installed: Installed,
    undisturbed: Done,
    rolled: rolling.Rolled,
    disturbed: Done,
    queued: Done,
    parts: Parts,
) -> Left:
    """All runs deleted, then the operator, then the CRDs that the chart keeps."""
    box, left = installed.box, Left()

    def gone(namespace: str, before: set[str]) -> bool:
        left.deleted[namespace] = objects(box, namespace) - before
        return not left.deleted[namespace]

    with parts.part("kubectl delete, until nothing is left"):
        for run in (undisturbed, disturbed):
            box.kubectl("delete", "-n", run.namespace, "-f", QUICKSTART, "--ignore-not-found")
        for run in (undisturbed, disturbed, queued):
            with contextlib.suppress(TimeoutError):  # a test says what is left
                box.wait_for(partial(gone, run.namespace, run.before), "the end of its objects", 180)
    with parts.part("helm uninstall"):
        box.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "5m")
        box.wait_for(lambda: not box.items(f"/api/v1/namespaces/{SYSTEM}/pods"), "the operator's end")
    left.system = objects(box, SYSTEM)
    own = {"persistentvolume/", "namespace/", "storageclass.storage.k8s.io/"}

    def besides() -> set[str]:
        return {one for one in objects(box) - installed.before if not one.startswith(tuple(own))}

    left.uninstalled = besides()
    left.running = [
        one["metadata"]["name"]
        for one in box.items("/api/v1/pods")
        if one["metadata"]["namespace"]
        in (SYSTEM, undisturbed.namespace, disturbed.namespace, queued.namespace)
    ]
    box.kubectl("delete", "crd", "finetunejobs.tunewright.dev", "serveendpoints.tunewright.dev")
    box.wait_for(lambda: not any("tunewright" in one for one in besides()), "the end of the CRDs")
    left.at_last = besides()
    return left


# -- what they share ------------------------------------------------------------------------------


def place(box: host.Box) -> tuple[str, set[str]]:
    """A namespace for one run, with a volume that the default storage class gives to its claim."""
    namespace = box.create_namespace("e2e", RESTRICTED)
    box.volume(namespace, storage_class="quickstart")
    box.patch(
        "/apis/storage.k8s.io/v1/storageclasses/quickstart",
        {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}},
    )
    # The API server defaults a claim's class from a cache of its own.
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"

    def defaulted() -> bool:
        made = box.request("POST", f"{claims}?dryRun=All", {**CLAIM, "metadata": {"name": "tried"}})
        return bool(made["spec"].get("storageClassName") == "quickstart")

    box.wait_for(defaulted, "the default storage class")
    box.wait_for(
        lambda: box.exists(f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt"),
        f"the certificates of {namespace}",
    )
    return namespace, objects(box, namespace)


def awaited(box: host.Box, namespace: str, kind: str, wanted: str = "condition=Ready") -> None:
    """`kubectl wait`, as a pipeline would, in turns: what has failed is not waited for any longer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            box.kubectl("wait", f"--for={wanted}", f"{kind}/{NAME}", "-n", namespace, "--timeout=10s")
        except KubectlError as late:
            status = resource(box, f"{kind}s", namespace).get("status", {})
            if status.get("phase") == "Failed" or time.monotonic() > deadline:
                raise AssertionError(f"{late}\n{json.dumps(status, indent=2)}") from None
        else:
            return
