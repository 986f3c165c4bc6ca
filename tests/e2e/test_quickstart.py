"""`kubectl apply -f examples/quickstart.yaml` on a real node, from the Dockerfiles to `helm uninstall`.

The fixtures are the story, each once: images, operator, an undisturbed run, one that is suspended and
robbed of its pod, the end of everything. Every test looks at what one of them left behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster import external
from tests.cluster.api import Cluster, KubectlError, Object, condition
from tests.e2e.box import addons, host, images, needs
from tests.e2e.parts import Parts
from tests.e2e.pods import Pods, pod
from tests.e2e.watching import Watch, distinct

from tunewright_workloads import samples
from tunewright_workloads.contract.lineage import Manifest

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples/quickstart.yaml"
CHART = ROOT / "charts/tunewright"
CLAIM, JOB, ENDPOINT = yaml.safe_load_all(QUICKSTART.read_text())
NAME = JOB["metadata"]["name"]
STEPS, EVERY = JOB["spec"]["training"]["steps"], JOB["spec"]["checkpoint"]["everySteps"]
QUESTION = "What happens to rows that are too long?"

SYSTEM = "tunewright-system"
RELEASE = "tunewright"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
PATIENCE = 900.0
"""Seconds for anything that trains: a small machine may be busy with something else as well."""

pytestmark = pytest.mark.timeout(3600)

ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "temperature": 0, "max_tokens": 128,
        "messages": [{"role": "user", "content": sys.argv[3]}]}
request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"])
"""


# -- looking --------------------------------------------------------------------------------------


def objects(box: host.Box, namespace: str | None = None) -> set[str]:
    """`kind/name` of everything in a namespace, or of everything that is in none; no events."""
    inside = namespace is not None
    kinds = box.kubectl("api-resources", f"--namespaced={str(inside).lower()}", "--verbs=list", "-o", "name")
    listed = [kind for kind in kinds.split() if not kind.startswith(("events", "componentstatuses"))]
    where = ["--namespace", namespace] if inside else []
    return set(box.kubectl("get", ",".join(listed), *where, "--ignore-not-found", "-o", "name").split())


def resource(box: host.Box, kind: str, namespace: str, name: str = NAME) -> Object:
    return box.request("GET", f"/apis/tunewright.dev/v1alpha1/namespaces/{namespace}/{kind}/{name}")


def output(box: host.Box, namespace: str) -> Path:
    """Where the quickstart's output is on the host: the folder of the volume that its claim is bound to."""
    name = CLAIM["metadata"]["name"]
    claim = box.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
    root, _, path = JOB["spec"]["output"]["uri"].removeprefix("pvc://").partition("/")
    assert root == name
    volume = box.request("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    return Path(volume["spec"]["local"]["path"]) / path


def checkpoints(folder: Path) -> list[int]:
    below = folder / "checkpoints"
    return sorted(int(p.name) for p in below.iterdir() if p.name.isdigit()) if below.is_dir() else []


def lines(folder: Path) -> list[Object]:
    """What the run has recorded so far; the last line may be half written."""
    file = folder / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(folder) if line["event"] == "step"]


def published(folder: Path) -> dict[str, str]:
    """sha256 of every published file, read from the disk and found to be what tunewright.json says."""
    merged = folder / "merged"
    manifest = Manifest.model_validate_json((merged / "tunewright.json").read_bytes())
    found = {}
    for name, record in manifest.files.items():
        with (merged / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        assert found[name] == record.sha256, name
    return found


def faq() -> dict[str, str]:
    rows = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    return {user["content"]: assistant["content"] for user, assistant in rows}


def of_job(box: host.Box, namespace: str) -> list[Object]:
    return box.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"tunewright.dev/job={NAME}")


def leaving(box: host.Box, namespace: str) -> bool:
    """Whether all pods of the job are on their way out, or gone."""
    return all("deletionTimestamp" in one["metadata"] for one in of_job(box, namespace))


def jobs_of(box: host.Box, namespace: str) -> set[str]:
    return {one["metadata"]["uid"] for one in box.items(f"/apis/batch/v1/namespaces/{namespace}/jobs")}


def tell(pods: list[Object]) -> None:
    """Says how long the workload of each finished pod ran."""
    for one in pods:
        (status,) = one["status"]["containerStatuses"]
        state = status["state"].get("terminated") or {}
        if state.get("startedAt") and state.get("finishedAt"):
            took = _moment(state["finishedAt"]) - _moment(state["startedAt"])
            print(f"{took:7.0f} s    of it in the container {status['name']}", flush=True)


def stalled(run: Done) -> list[object]:
    """What a run said it needed somebody for."""
    found = [condition({"status": one}, "Stalled") for one in run.jobs]
    return distinct([one and (one["reason"], one["message"]) for one in found])


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- the story ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    """The times; told once more when everything is over."""
    taken = Parts()
    yield taken
    print(f"\n\n{taken.table()}", flush=True)


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as it is when the images are built: an edit meanwhile is no part of the upgrade."""
    return shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / CHART.name)


@pytest.fixture(scope="module")
def archives(chart: Path, parts: Parts) -> list[Path]:
    """Our images, of our Dockerfiles, under the names that the chart gives them."""
    if external.named():
        pytest.skip(f"its images and its volume are the box's, and {external.VARIABLE} names another cluster")
    needs.check()
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    made = []
    for name, arguments in (("operator", {}), ("train", {"LOCK": "train"})):
        with parts.part(f"build Dockerfile.{name}"):
            tag = f"localhost/tunewright/{name}:{version}"
            made.append(images.build(ROOT / f"Dockerfile.{name}", ROOT, tag, arguments))
    return made


@dataclass
class Installed:
    """A box with our operator in it. before: what was there besides, in no namespace."""

    box: host.Box
    before: set[str]


@pytest.fixture(scope="module")
def installed(archives: list[Path], chart: Path, request: pytest.FixtureRequest, parts: Parts) -> Installed:
    """The operator, from the chart and its defaults; only the registry is said."""
    with parts.part("a node"):
        node: Cluster = request.getfixturevalue("node")
    assert isinstance(node, host.Box)
    for archive in archives:
        with parts.part(f"load {archive.name}, {archive.stat().st_size >> 20} MB"):
            node.load(archive)
    node.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM, "labels": RESTRICTED}})
    with parts.part("Kueue, of its own chart"):
        addons.kueue(node)
    before = objects(node)
    with parts.part("helm install"):
        where = ["--namespace", SYSTEM, "--wait", "--timeout", "5m"]
        node.helm("install", RELEASE, chart, *where, "--set", "image.registry=localhost/")
    return Installed(node, before)


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


@pytest.fixture(scope="module")
def undisturbed(installed: Installed, parts: Parts) -> Done:
    """The quickstart as it is: applied with kubectl, awaited, asked."""
    box = installed.box
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


@contextlib.contextmanager
def held(box: host.Box, folder: Path, step: int) -> Iterator[None]:
    """Holds the trainer still once it is past `step`: a fast machine would be done before kubectl is."""
    box.wait_for(lambda: any(done >= step for done, _ in losses(folder)), f"step {step}", PATIENCE)
    pids = box.inside("pgrep", "--full", "tunewright_workloads.train --config").split()
    box.inside("kill", "-STOP", *pids)
    try:
        yield
    finally:
        box.inside("kill", "-CONT", *pids)


@pytest.fixture(scope="module")
def disturbed(installed: Installed, chart: Path, parts: Parts) -> Done:
    """The same job, suspended and resumed in the middle of training, and then robbed of its pod."""
    box = installed.box
    namespace, before = place(box)
    job = ["finetunejob", NAME, "-n", namespace]

    def suspend(value: bool) -> None:
        box.kubectl("patch", *job, "--type=merge", "-p", json.dumps({"spec": {"suspend": value}}))

    def gone(name: str) -> bool:
        return name not in [one["metadata"]["name"] for one in of_job(box, namespace)]

    with Watch(box, "finetunejobs", namespace) as jobs:
        with parts.part("apply again, suspended in the middle"):
            box.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all([CLAIM, JOB]))
            box.wait_for(lambda: bool(of_job(box, namespace)), "the first pod", PATIENCE)
            box.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "-n", namespace)
            done = Done(namespace, output(box, namespace), before)
            with held(box, done.folder, EVERY):
                suspend(True)
                box.wait_for(partial(leaving, box, namespace), "the deletion of the suspended pod", PATIENCE)
            awaited(box, namespace, "finetunejob", "jsonpath={.status.phase}=Suspended")
            box.wait_for(lambda: not of_job(box, namespace), "the end of the suspended pod", PATIENCE)
        done.resumed.append(checkpoints(done.folder)[-1])
        done.table = box.kubectl("get", *job)
        with parts.part("resumed, its pod deleted in the middle"):
            suspend(False)
            with held(box, done.folder, done.resumed[0] + 1):
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


@pytest.fixture(scope="module")
def queued(installed: Installed, parts: Parts) -> Done:
    """The same job in a queue that is closed at first, and closed once more in the middle of training."""
    box = installed.box
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
    job = {**JOB, "spec": {**JOB["spec"], "queue": {"name": "team"}}}

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
            with held(box, done.folder, EVERY):
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


@dataclass
class Left:
    """What was there of us: after the resources were deleted, after the chart was, after the CRDs were."""

    deleted: dict[str, set[str]] = field(default_factory=dict)
    system: set[str] = field(default_factory=set)
    uninstalled: set[str] = field(default_factory=set)
    at_last: set[str] = field(default_factory=set)
    running: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def removed(installed: Installed, undisturbed: Done, disturbed: Done, queued: Done, parts: Parts) -> Left:
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


# -- what must hold -------------------------------------------------------------------------------


def test_the_operator_runs_as_a_pod_of_its_own_with_rights_of_its_own(installed: Installed) -> None:
    box = installed.box
    (pod,) = box.items(f"/api/v1/namespaces/{SYSTEM}/pods")
    assert pod["spec"]["serviceAccountName"] == "tunewright-operator"
    assert pod["spec"]["containers"][0]["image"].startswith("localhost/tunewright/operator:")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    token = box.service_account_token(SYSTEM, "tunewright-operator")
    for verb, kind, allowed in (
        ("list", "pods", True),
        ("list", "secrets", False),
        ("delete", "pods", False),
    ):
        asked = {"spec": {"resourceAttributes": {"verb": verb, "resource": kind, "namespace": "default"}}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert box.request("POST", path, asked, token=token)["status"]["allowed"] is allowed, (verb, kind)


def test_the_job_goes_through_its_phases_and_ends_with_every_condition_said(undisturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in undisturbed.jobs])
    assert phases == ["Provisioning", "Training", "Merging", "Succeeded"]
    last = {"status": undisturbed.jobs[-1]}
    for kind in ("Ready", "Trained", "Merged"):
        assert condition(last, kind), kind
    for kind in ("Reconciling", "Stalled", "Suspended"):
        assert condition(last, kind, "False"), kind
    assert last["status"]["observedGeneration"] == 1


def test_progress_reaches_status_out_of_the_pod(undisturbed: Done) -> None:
    last = undisturbed.jobs[-1]
    assert last["progress"]["step"] == last["progress"]["totalSteps"] == STEPS
    assert last["progress"]["loss"] == pytest.approx(losses(undisturbed.folder)[-1][1], rel=1e-5)
    assert last["checkpoint"]["step"] == STEPS
    told = distinct([one.get("progress", {}).get("step") for one in undisturbed.jobs])
    assert told == sorted(told)
    assert last["attempts"] >= 1
    assert last["preemptions"] == 0


def test_kubectl_get_shows_phase_step_and_loss(undisturbed: Done) -> None:
    head, row = undisturbed.table.splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "LOSS", "ETA", "COST", "AGE"]
    assert row.split()[:3] == [NAME, "Succeeded", str(STEPS)]


def test_what_was_published_is_what_status_names(undisturbed: Done) -> None:
    artifacts = undisturbed.jobs[-1]["artifacts"]
    assert artifacts["merged"]["uri"] == f"{JOB['spec']['output']['uri']}/merged"
    assert "model.safetensors" in " ".join(published(undisturbed.folder))
    manifest = (undisturbed.folder / "merged/tunewright.json").read_bytes()
    assert artifacts["merged"]["digest"] == hashlib.sha256(manifest).hexdigest()


def test_the_endpoint_waits_for_the_job_passes_its_gate_and_is_ready(undisturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in undisturbed.endpoints])
    assert phases[0] == "Pending"
    assert phases[-1] == "Ready"
    assert "Verifying" in phases
    last = undisturbed.endpoints[-1]
    assert last["model"]["job"] == NAME
    assert last["model"]["digest"] == undisturbed.jobs[-1]["artifacts"]["merged"]["digest"]
    assert condition({"status": last}, "Available")


def test_the_endpoint_gives_the_datasets_answer_through_its_service(undisturbed: Done) -> None:
    assert undisturbed.answers == [faq()[QUESTION]]


def test_suspending_gives_the_node_back_and_keeps_what_was_trained(disturbed: Done) -> None:
    phases = distinct([one.get("phase") for one in disturbed.jobs])
    assert "Suspended" in phases
    assert phases[-1] == "Succeeded"
    halted = [one for one in disturbed.jobs if one.get("phase") == "Suspended"]
    assert condition({"status": halted[-1]}, "Suspended")
    assert halted[-1]["checkpoint"]["step"] == disturbed.resumed[0]
    assert disturbed.table.splitlines()[1].split()[:2] == [NAME, "Suspended"]


def test_every_resumption_was_in_the_middle_and_at_the_step_that_was_saved(disturbed: Done) -> None:
    starts = [line["step"] for line in lines(disturbed.folder) if line["event"] == "start"]
    assert starts == [0, *disturbed.resumed]
    assert EVERY <= starts[1] < starts[2] < STEPS


def test_a_disturbed_run_tells_the_same_losses_and_publishes_the_same_bytes(
    undisturbed: Done, disturbed: Done
) -> None:
    assert [step for step, _ in losses(disturbed.folder)] == list(range(1, STEPS + 1))
    assert losses(disturbed.folder) == losses(undisturbed.folder)
    assert published(disturbed.folder) == published(undisturbed.folder)


def test_a_queued_job_waits_for_kueue_and_an_eviction_sends_it_back_into_the_queue(queued: Done) -> None:
    phases = distinct([one.get("phase") for one in queued.jobs])
    trained = phases.index("Training")
    assert phases[0] == "Queued"
    assert "Queued" in phases[trained:]
    assert "Training" in phases[phases.index("Queued", trained) :]
    assert phases[-1] == "Succeeded"
    assert stalled(queued) == []


def test_an_evicted_job_goes_on_where_it_was_and_publishes_the_same_bytes(
    undisturbed: Done, queued: Done
) -> None:
    starts = [line["step"] for line in lines(queued.folder) if line["event"] == "start"]
    assert starts == [0, *queued.resumed]
    assert EVERY <= starts[1] < STEPS
    assert losses(queued.folder) == losses(undisturbed.folder)
    assert published(queued.folder) == published(undisturbed.folder)


def test_being_taken_away_counts_as_no_failure(disturbed: Done) -> None:
    assert disturbed.jobs[-1]["preemptions"] == 1
    assert stalled(disturbed) == []


def test_an_upgraded_operator_leaves_the_running_job_as_it_is(disturbed: Done) -> None:
    assert len(disturbed.kept) == 1


def test_deleting_the_resources_leaves_no_orphan(removed: Left) -> None:
    assert set().union(*removed.deleted.values()) == set()


def test_uninstalling_the_chart_leaves_nothing_of_ours_running(removed: Left) -> None:
    assert removed.running == []
    assert {one for one in removed.system if "tunewright" in one} == set()
    kept = {
        one
        for one in removed.uninstalled
        if "customresourcedefinition" not in one and "apiservice" not in one
    }
    assert kept == set()


def test_the_crds_are_kept_until_somebody_deletes_them(removed: Left) -> None:
    crds = {one for one in removed.uninstalled if one.startswith("customresourcedefinition")}
    assert {one.partition("/")[2] for one in crds} == {
        "finetunejobs.tunewright.dev",
        "serveendpoints.tunewright.dev",
    }
    assert removed.at_last == set()
