"""What a pod's state means: every shape that looks like another one."""

from __future__ import annotations

import pytest

from support.objects import Pod
from tunewright_operator.observe import pods
from tunewright_operator.observe.pods import Shape

POD = Pod.of()

SHAPES = [
    ("a pod without a node waits for one", POD.unschedulable(), Shape.UNSCHEDULABLE),
    ("a pod whose image is being made is starting", POD.waiting("ContainerCreating"), Shape.STARTING),
    ("a first failed pull may only have met a slow registry", POD.waiting("ErrImagePull"), Shape.STARTING),
    ("a pull that backs off needs somebody", POD.waiting("ImagePullBackOff"), Shape.IMAGE),
    ("an image that may not be pulled needs somebody", POD.waiting("ErrImageNeverPull"), Shape.IMAGE),
    ("a name that is no image needs somebody", POD.waiting("InvalidImageName"), Shape.IMAGE),
    ("a missing secret needs somebody", POD.waiting("CreateContainerConfigError", 'secret "hf" not found'), Shape.CONFIG),
    ("a server that keeps ending is restarting", POD.waiting("CrashLoopBackOff"), Shape.CRASHING),
    ("a running pod runs", POD.running(), Shape.RUNNING),
    ("a pod that ended well succeeded", POD.succeeded(), Shape.SUCCEEDED),
    ("our own code says that the checkpoint is saved", POD.failed(75), Shape.PREEMPTED),
    ("a pod ended by SIGTERM was ended from outside", POD.failed(143), Shape.PREEMPTED),
    ("a pod ended by SIGKILL was ended from outside", POD.failed(137), Shape.PREEMPTED),
    ("the same code with the kernel's word is out of memory", POD.failed(137, reason="OOMKilled"), Shape.MEMORY),
    ("a killed child is out of memory whatever the main process says", POD.failed(5, reason="OOMKilled"), Shape.MEMORY),
    ("bad input is never repeated", POD.failed(2, message="train.jsonl:3: is not JSON"), Shape.INPUT),
    ("any other code is a failure", POD.failed(1), Shape.FAILED),
    ("a code that the kernel makes of a crash is a failure", POD.failed(139), Shape.FAILED),
    ("a taint took the pod away", POD.failed(1).disrupted("DeletionByTaintManager"), Shape.PREEMPTED),
    ("a more important pod took its place", POD.disrupted("PreemptionByScheduler"), Shape.PREEMPTED),
    ("its node is gone", POD.disrupted("DeletionByPodGC"), Shape.PREEMPTED),
    ("somebody drained the node", POD.failed(75).disrupted("EvictionByEvictionAPI"), Shape.PREEMPTED),
    (
        "memory pressure of the node is not the pod's fault",
        POD.evicted("The node was low on resource: memory. Threshold quantity: 100Mi"),
        Shape.PREEMPTED,
    ),
    (
        "scratch space above its limit would run out again",
        POD.evicted("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."),
        Shape.STORAGE,
    ),
    (
        "a node that is low on scratch space would be again",
        POD.evicted("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi"),
        Shape.STORAGE,
    ),
    (
        "a scratch volume above its limit would be again",
        POD.evicted('Usage of EmptyDir volume "work" exceeds the limit "1Gi". '),
        Shape.STORAGE,
    ),
    ("a node without healthy devices is under repair", POD.rejected(), Shape.REPAIR),
    ("a node whose labels changed is under repair", POD.rejected("NodeAffinity"), Shape.REPAIR),
    ("a failure without any word is a failure", POD.rejected("", ""), Shape.FAILED),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "pod", "shape"), SHAPES, ids=[s for s, _, _ in SHAPES])
def test_shape(sentence: str, pod: Pod, shape: Shape) -> None:
    found = pods.find(pod.slim)
    assert found.shape is shape
    if found.ended and shape is not Shape.SUCCEEDED:
        assert found.message


def test_the_message_of_bad_input_is_what_the_workload_said() -> None:
    found = pods.find(POD.failed(2, message="train.jsonl:3: messages is required\n").slim)
    assert "train.jsonl:3: messages is required" in found.message
    assert found.code == 2


def test_a_failure_names_the_command_that_shows_its_log() -> None:
    assert "kubectl logs -n team bot-train-x" in pods.find(POD.failed(1).slim).message


def test_a_missing_secret_is_named() -> None:
    found = pods.find(POD.waiting("CreateContainerConfigError", 'secret "hf-secret" not found').slim)
    assert 'secret "hf-secret" not found' in found.message


def test_a_helper_that_is_ended_after_the_work_is_not_what_went_wrong() -> None:
    pod = POD.failed(1)
    helper = {"name": "relay", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    pod = pod._with(status__initContainerStatuses=[helper])
    found = pods.find(pod.slim)
    assert (found.shape, found.code) == (Shape.FAILED, 1)


def test_every_shape_of_a_pod_is_in_the_table() -> None:
    assert {shape for _, _, shape in SHAPES} == set(Shape)


def test_an_image_without_our_workloads_is_told_from_a_server_that_fails() -> None:
    said = (
        "/usr/bin/python3: Error while finding module specification for 'tunewright_workloads.serve' "
        "(ModuleNotFoundError: No module named 'tunewright_workloads')"
    )
    waiting = POD.waiting("CrashLoopBackOff")
    one = waiting.body["status"]["containerStatuses"][0]
    one["lastState"] = {"terminated": {"exitCode": 1, "message": said}}
    assert "Build Dockerfile.serve" in pods.find(waiting.slim).message


def test_long_last_words_are_shown_from_both_ends() -> None:
    """With FallbackToLogsOnError they are the end of a log, whose last line is the error."""
    said = "first " + "INFO loading " * 200 + "model.layers.1 is missing"
    message = pods.find(POD.failed(2, message=said).slim).message
    assert "first INFO" in message and "model.layers.1 is missing" in message and len(message) < 900
