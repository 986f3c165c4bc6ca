"""Rollouts of an endpoint on a real node, to a right model and to wrong ones, while clients ask all the time."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tests.cluster.api import Object, condition
from tests.e2e.box import host
from tests.e2e.looking import CLAIM, NAME, resource
from tests.e2e.parts import Parts

from support import merged
from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.gemma import names
from tunewright_workloads.serve.verify import read

REQUESTS = 1000
"""Asked for in all, at least."""

CLIENTS, PAUSE = 4, 0.1
"""So many ask one after the other, each with a pause: the new server needs the processor as well."""

PATIENCE = 600.0


@dataclass
class Clients:
    """Requests through a Service, each on a connection of its own, from `with` until it is left.

    answers: how often each answer came. lost: what happened instead of one.
    """

    address: str
    answers: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def ask(self) -> str:
        """One greedy answer. Raises OSError or HTTPException when there is none."""
        body = {"model": NAME, "prompt": "What is Tunewright?", "temperature": 0, "max_tokens": 4}
        connection = http.client.HTTPConnection(self.address, timeout=120)
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                raise OSError(f"{answer.status}: {text}")
            return str(json.loads(text)["choices"][0]["text"])
        finally:
            connection.close()

    def enough(self) -> bool:
        """Whether as many as wanted were asked."""
        return self.answers.total() + len(self.lost) >= REQUESTS

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Asks without pause while inside."""
        over, lock = threading.Event(), threading.Lock()

        def client() -> None:
            while not over.wait(PAUSE):
                began = time.monotonic()
                try:
                    text = self.ask()
                except (OSError, http.client.HTTPException, ValueError) as problem:
                    with lock:
                        self.lost.append(f"after {time.monotonic() - began:.2f} s: {problem!r}")
                else:
                    with lock:
                        self.answers[text] += 1

        threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            over.set()
            for one in threads:
                one.join()


@dataclass
class Refused:
    """A wrong model's rollout. status: of the endpoint; before, during: what the Service selects."""

    status: Object
    before: Object
    during: Object
    answer: str


@dataclass
class Rolled:
    """Everything that was seen. first, second: the Service's selector before and after the right rollout;
    right: the answer of the right model; healed: the status once the right model was named again."""

    clients: Clients
    right: str
    first: Object
    second: Object
    refused: dict[str, Refused]
    healed: Object


def _unmerged(base: Path, right: Path, target: Path, probes: list[Probe]) -> None:
    merged.edit(base, target, lambda _, tensor: tensor, probes)


def _doubled(base: Path, right: Path, target: Path, probes: list[Probe]) -> None:
    before = {name: tensor for path in base.glob("*.safetensors") for name, tensor in load_file(path).items()}
    prefix = names.text_prefix(before)

    def change(name: str, tensor: np.ndarray) -> np.ndarray:
        return (2 * tensor - before[prefix + name].astype(tensor.dtype)).astype(tensor.dtype)

    merged.edit(right, target, change, probes)


def _other_tokenizer(base: Path, right: Path, target: Path, probes: list[Probe]) -> None:
    merged.with_other_tokenizer(right, target, probes)


def _zeroed(base: Path, right: Path, target: Path, probes: list[Probe]) -> None:
    merged.with_zeroed_layer(right, target, probes)


Make = Callable[[Path, Path, Path, list[Probe]], None]

WRONG: dict[str, Make] = {"adapter-not-merged": _unmerged, "other-tokenizer": _other_tokenizer}
"""Each with a manifest that agrees with its files, so that only its answers can betray it."""

if "TUNEWRIGHT_TEST_ALL" in os.environ:  # half a minute each
    WRONG |= {"alpha-doubled": _doubled, "layer-zeroed": _zeroed}


def story(box: host.Box, namespace: str, folder: Path, work: Path, parts: Parts) -> Rolled:
    """Leads the endpoint of the quickstart, whose output is in `folder`, through its rollouts.

    Scratch in `work`. The endpoint serves the right model at the end.
    """
    root = folder.parent / "models"
    right = folder / "merged"
    probes = read(right).probes
    shutil.copytree(right, root / "right")
    base = merged.base(work / "base")
    for name, make in WRONG.items():
        make(base, right, root / name, probes)
    service = f"/api/v1/namespaces/{namespace}/services/{NAME}"
    clients = Clients(box.request("GET", service)["spec"]["clusterIP"])

    def selector() -> Object:
        found: Object = box.request("GET", service)["spec"]["selector"]
        return found

    def lead(model: str) -> None:
        uri = f"pvc://{CLAIM['metadata']['name']}/models/{model}"
        change = {"model": {"uri": uri, "fineTuneJobRef": None}, "rollout": {"strategy": "blueGreen"}}
        path = f"/apis/tunewright.dev/v1alpha1/namespaces/{namespace}/serveendpoints/{NAME}"
        changed = box.patch(path, {"spec": change})["metadata"]["generation"]

        def settled() -> bool:
            status = resource(box, "serveendpoints", namespace)["status"]
            return status.get("observedGeneration") == changed and status["phase"] in ("Ready", "Failed")

        box.wait_for(settled, f"the end of the rollout to {model}", PATIENCE)

    def status() -> Object:
        found: Object = resource(box, "serveendpoints", namespace)["status"]
        return found

    def alone() -> bool:
        return len(box.items(f"/apis/apps/v1/namespaces/{namespace}/deployments")) == 1

    answer, first, refused = clients.ask(), selector(), {}
    with clients.asking():
        with parts.part("a rollout to a right model, under load"):
            lead("right")
            assert condition({"status": status()}, "Ready"), status()
            box.wait_for(alone, "the end of the old version", PATIENCE)
        second = selector()
        for name in WRONG:
            with parts.part(f"a rollout to a wrong model ({name}), refused, under load"):
                before = selector()
                lead(name)
                refused[name] = Refused(status(), before, selector(), clients.ask())
                lead("right")
        with parts.part(f"until {REQUESTS} requests were answered"):
            box.wait_for(clients.enough, f"{REQUESTS} requests", PATIENCE)
    return Rolled(clients, answer, first, second, refused, status())
