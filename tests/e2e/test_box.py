"""The box itself: what the tests of the operator on a real node take for granted."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from tests.cluster.api import ApiError, condition
from tests.e2e.box import addons, host, images, layout
from tests.e2e.pods import Pods, pod

NAMES = """
import socket, sys, time
for _ in range(100):
    try:
        print(socket.gethostbyname(sys.argv[1]))
        break
    except OSError:
        time.sleep(0.2)
"""


@pytest.fixture
def pods(box: host.Box, namespace: str) -> Pods:
    return Pods(box, namespace)


def test_a_restricted_pod_runs_python_and_its_log_is_read(pods: Pods) -> None:
    code, printed = pods.run(pod("hello", "python", "-c", "import os, sys; print(sys.version, os.getuid())"))
    assert code == 0
    assert printed.startswith("3.11.")
    assert printed.split()[-1] == str(images.NONROOT)


def test_an_exit_code_is_passed_on(pods: Pods) -> None:
    assert pods.run(pod("fails", "sh", "-c", "echo bad input; exit 2")) == (2, "bad input\n")


def test_a_pod_that_may_become_root_is_refused(pods: Pods) -> None:
    wanted = pod("root", "true")
    del wanted["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(ApiError, match="violates PodSecurity"):
        pods.create(wanted)


def test_a_container_over_its_memory_limit_is_killed_as_that(pods: Pods) -> None:
    greedy = pod(
        "greedy", "python", "-c", "x = bytearray(400 << 20)", resources={"limits": {"memory": "64Mi"}}
    )
    name = pods.create(greedy)
    state = pods.await_phase(name, "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (137, "OOMKilled")


def test_a_service_answers_by_address_from_the_host_and_by_name_from_a_pod(box: host.Box, pods: Pods) -> None:
    server = ["python", "-m", "http.server", "8080", "--directory", "/tmp"]
    pods.create(
        pod("server", *server, labels={"app": "server"}, readinessProbe={"tcpSocket": {"port": 8080}})
    )
    service = box.request(
        "POST",
        f"/api/v1/namespaces/{pods.namespace}/services",
        {
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    address = service["spec"]["clusterIP"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers() -> bool:
        try:
            with opener.open(f"http://{address}/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    box.wait_for(answers, f"an answer of the service at {address}")
    code, printed = pods.run(pod("client", "python", "-c", NAMES, f"web.{pods.namespace}.svc.cluster.local"))
    assert (code, printed.strip()) == (0, address)


def test_a_local_volume_belongs_to_the_pod_and_outlives_it(box: host.Box, pods: Pods) -> None:
    folder = box.volume(pods.namespace)
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    box.request("POST", f"/api/v1/namespaces/{pods.namespace}/persistentvolumeclaims", claim)
    wanted = pod(
        "writer", "sh", "-c", "echo kept > /data/f", volumeMounts=[{"name": "d", "mountPath": "/data"}]
    )
    wanted["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    assert pods.run(wanted)[0] == 0
    assert (folder / "f").read_text() == "kept\n"


def test_an_image_of_our_own_dockerfile_runs(box: host.Box, pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("print('built here')\n")
    (tmp_path / "Dockerfile").write_text(
        "ARG BASE\nFROM ${BASE}\nCOPY app.py /app.py\nRUN python -m pip --version\n"
        f'USER {images.NONROOT}\nENTRYPOINT ["python", "/app.py"]\n'
    )
    box.load(images.build(tmp_path / "Dockerfile", tmp_path, "localhost/selftest:1"))
    wanted = pod("own")
    wanted["spec"]["containers"][0]["image"] = "localhost/selftest:1"
    del wanted["spec"]["containers"][0]["command"]
    assert pods.run(wanted) == (0, "built here\n")


MEET = """
import os, socket, time
first = os.environ["FIRST"]
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    with socket.create_server(("", 9000)) as server:
        peer, _ = server.accept()
        print("met", peer.recv(99).decode())
else:
    while True:
        try:
            peer = socket.create_connection((first, 9000), 5)
            break
        except OSError:
            time.sleep(0.2)
    peer.sendall(b"the second host")
"""


def test_the_pods_of_a_jobset_meet_by_name(box: host.Box, pods: Pods) -> None:
    addons.jobset(box)
    template = pod("host", "python", "-c", MEET, env=[{"name": "FIRST", "value": "slice-hosts-0-0.slice"}])
    spec = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": template["spec"]},
    }
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{pods.namespace}/jobsets"
    box.request(
        "POST",
        path,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "slice"},
            "spec": {"replicatedJobs": [{"name": "hosts", "replicas": 1, "template": {"spec": spec}}]},
        },
    )
    box.wait_for(
        lambda: condition(box.request("GET", f"{path}/slice"), "Completed") is not None, "the JobSet's end"
    )
    first = box.items(pods.path, labelSelector="batch.kubernetes.io/job-completion-index=0")[0]
    assert box.kubectl("logs", "-n", pods.namespace, first["metadata"]["name"]) == "met the second host\n"


def test_kueue_lets_a_suspended_job_run(box: host.Box, pods: Pods) -> None:
    addons.kueue(box)
    name, version = pods.namespace, "kueue.x-k8s.io/v1beta2"
    resources = [{"name": "cpu", "nominalQuota": 1}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": resources}]}
    box.apply(
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": name}},
        {
            "apiVersion": version,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": "cpu", "namespace": name},
            "spec": {"clusterQueue": name},
        },
    )
    template = pod("queued", "true", resources={"requests": {"cpu": "50m"}})
    path = f"/apis/batch/v1/namespaces/{name}/jobs"
    box.request(
        "POST",
        path,
        {
            "metadata": {"name": "queued", "labels": {"kueue.x-k8s.io/queue-name": "cpu"}},
            "spec": {"suspend": True, "template": {"spec": template["spec"]}},
        },
    )
    box.wait_for(
        lambda: condition(box.request("GET", f"{path}/queued"), "Complete") is not None, "the Job's end"
    )
    for kind in ("clusterqueues", "resourceflavors"):  # while Kueue is there to release their finalizers
        box.request("DELETE", f"/apis/{version}/{kind}/{name}")


def test_components_can_be_reached_from_within(box: host.Box) -> None:
    assert box.inside("cat", f"/proc/{box.pid('kubelet')}/cmdline").split("\0")[1] == "kubelet"
    assert layout.NODE_ADDRESS in box.inside("ip", "addr", "show", layout.BRIDGE)


def test_the_box_that_is_up_can_be_attached_to(box: host.Box) -> None:
    assert host.attach().request("GET", "/version") == box.request("GET", "/version")
