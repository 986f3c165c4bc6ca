"""What a resource's status said, one after the other: `kubectl get --watch`, read back."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import build
from tests.cluster.api import Object
from tests.cluster.process import Process, wait_for

from .box import host


class Watch:
    """A watch of one of our kinds in one namespace, from when it is entered until it is left."""

    def __init__(self, box: host.Box, kind: str, namespace: str) -> None:
        self._box, self._kind, self._namespace = box, kind, namespace
        self._folder = tempfile.TemporaryDirectory(prefix="tunewright-watch-")
        self._file = Path(self._folder.name) / "seen"
        kubectl = [build.binary("kubebox"), "kubectl", f"--kubeconfig={box.kubeconfig}"]
        asked = ["get", kind, f"--namespace={namespace}", "--watch", "--output=json"]
        self._process = Process(
            f"watch of {kind}", [*kubectl, *asked, f"--cache-dir={box.folder / 'kubectl'}"], self._file
        )

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()
        self._folder.cleanup()

    def seen(self, name: str) -> list[Object]:
        """The status of `name` at each change, in order, up to the one that the API server holds now."""
        path = f"/apis/tunewright.dev/v1alpha1/namespaces/{self._namespace}/{self._kind}/{name}"
        now = self._box.request("GET", path)["metadata"]["resourceVersion"]
        wait_for(
            lambda: any(one["metadata"]["resourceVersion"] == now for one in self._read(name)),
            f"the newest {self._kind} {name} in its watch",
            [self._process],
        )
        return [one.get("status") or {} for one in self._read(name)]

    def _read(self, name: str) -> list[Object]:
        text, decoder, found, place = self._file.read_text(), json.JSONDecoder(), [], 0
        while place < len(text):
            if text[place] != "{":  # white space, and what kubectl says to people
                place += 1
                continue
            try:
                one, place = decoder.raw_decode(text, place)
            except ValueError:  # the last one is being written
                break
            if one["metadata"].get("name") == name:
                found.append(one)
        return found


def distinct(values: list[object]) -> list[object]:
    """Without what is missing and without repetitions of the one before."""
    there = [value for value in values if value is not None]
    return [value for i, value in enumerate(there) if i == 0 or value != there[i - 1]]
