"""Speaks to a Kubernetes API server: the part that is the same for our own and for somebody else's.

Plain JSON over HTTPS from the standard library, so that a test sees the very answer of the server, and
`kubectl` for what kubectl does best (apply, wait). Nothing here starts a process that stays.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from .process import Process, wait_for

FIELD_MANAGER = "tunewright-tests"

_MERGE_PATCH = "application/merge-patch+json"

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""


class ApiError(Exception):
    """The API server refused a request; `status` is its HTTP code, `message` its own words."""

    def __init__(self, status: int, message: str, body: Object) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.body = body


class KubectlError(Exception):
    """kubectl ended with an exit code; the message is what it wrote to stderr."""


@dataclass(frozen=True)
class Access:
    """How to reach an API server as its administrator: a bearer token, a client certificate, or both."""

    url: str
    ca: Path
    cert: Path | None = None
    key: Path | None = None
    token: str | None = None


class Cluster:
    """An API server, whoever runs it."""

    def __init__(self, access: Access, kubeconfig: Path, kubectl: Sequence[str | Path], cache: Path) -> None:
        self.access = access
        self.kubeconfig = kubeconfig
        self._kubectl = [str(part) for part in kubectl]
        self._cache = cache
        self._opener = self._open_with(access.cert, access.key)
        self._anonymous = self._open_with(None, None)

    @property
    def url(self) -> str:
        """Where the API server answers, without a slash at the end."""
        return self.access.url

    @property
    def ca(self) -> Path:
        """The PEM file that the API server's certificate verifies against."""
        return self.access.ca

    @property
    def token(self) -> str | None:
        """The administrator's bearer token, where there is one."""
        return self.access.token

    @property
    def watched(self) -> Sequence[Process]:
        """The processes whose death explains why something does not come; none where they are not ours."""
        return ()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
        timeout: float = 60.0,
    ) -> Object:
        """One request, as the administrator or as the bearer of `token`; raises ApiError on a refusal.

        An answer that is not JSON (as of /metrics) is returned as {"message": the text}.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = content_type
        opener = self._opener
        if token is not None:  # a client certificate would outrank the token
            opener, headers["Authorization"] = self._anonymous, f"Bearer {token}"
        elif self.access.cert is None and self.access.token is not None:
            headers["Authorization"] = f"Bearer {self.access.token}"
        asked = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with opener.open(asked, timeout=timeout) as answer:
                return _decoded(answer.read())
        except urllib.error.HTTPError as refusal:
            answer_body = _decoded(refusal.read())
            raise ApiError(refusal.code, answer_body.get("message", refusal.reason), answer_body) from None

    def patch(self, path: str, change: object) -> Object:
        """A merge patch: maps are merged, lists replaced. End `path` in /status for that subresource."""
        return self.request("PATCH", path, change, content_type=_MERGE_PATCH)

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Runs kubectl and returns what it printed; raises KubectlError with its complaint."""
        command = [
            *self._kubectl,
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self._cache}",  # the user's own would fill up with clusters that are gone
            *map(str, arguments),
        ]
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"} | {"KUBECTL_KUBERC": "false"}
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"`kubectl {' '.join(map(str, arguments))}`: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Server-side apply of whole objects, in order, as the tests' field manager."""
        self.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            f"--field-manager={FIELD_MANAGER}",
            "-f",
            "-",
            stdin="".join(f"---\n{json.dumps(one)}\n" for one in objects),
        )

    def install_crds(self, paths: Iterable[Path]) -> None:
        """Installs CRDs from YAML files, or folders of them, and waits until the API server serves them."""
        files = [
            file for path in paths for file in (sorted(path.glob("*.y*ml")) if path.is_dir() else [path])
        ]
        found = [
            one
            for file in files
            for one in yaml.safe_load_all(file.read_text())
            if one and one.get("kind") == "CustomResourceDefinition"
        ]
        if not found:
            raise ValueError(
                f"no CustomResourceDefinition in {', '.join(map(str, files)) or 'no file at all'}"
            )
        self.apply(*found)
        self.established(one["metadata"]["name"] for one in found)

    def established(self, names: Iterable[str]) -> None:
        """Waits until the CRDs of these names are served."""
        for name in names:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
            self.wait_for(partial(self._holds, path, "Established"), f"CRD {name}")

    def create_namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> str:
        """A new namespace, usable at once: pods are refused before its default service account exists."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name, "labels": dict(labels or {})}
        self.request("POST", "/api/v1/namespaces", {"metadata": metadata})
        if self.controllers:
            self.wait_for(
                lambda: self.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
                f"the default service account of {name}",
            )
        return name

    @property
    def controllers(self) -> bool:
        """Whether a controller manager runs, without which no Job makes a Pod."""
        return True

    def delete_namespace(self, name: str) -> None:
        """Starts the deletion of a namespace and frees its pods' nodes; does not wait for the end.

        Pods on nodes without a kubelet have nobody to end them: they are deleted without grace.
        """
        self.request("DELETE", f"/api/v1/namespaces/{name}")
        self.request("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")

    def exists(self, path: str) -> bool:
        """Whether a GET of `path` finds something; refusals other than 404 are raised."""
        try:
            self.request("GET", path)
        except ApiError as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def items(self, path: str, **parameters: str) -> list[Object]:
        """The items of the list at `path`, for example with labelSelector="a=b"."""
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        return self.request("GET", path + query)["items"]

    def wait_for(self, ready: Callable[[], bool], what: str, timeout: float = 120.0) -> None:
        """Polls until `ready` holds; `what` names in an error what did not come."""
        wait_for(ready, what, self.watched, timeout)

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of a service account, to ask the API server with what that account may do."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return self.request("POST", path, {"spec": {"expirationSeconds": 3600 * 24}})["status"]["token"]

    def _holds(self, path: str, kind: str) -> bool:
        return condition(self.request("GET", path), kind) is not None

    def _open_with(self, cert: Path | None, key: Path | None) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=str(self.access.ca))
        if cert is not None and key is not None:
            context.load_cert_chain(cert, key)
        handler = urllib.request.HTTPSHandler(context=context)
        return urllib.request.build_opener(handler, urllib.request.ProxyHandler({}))


def _decoded(text: bytes) -> Object:
    """The JSON of an answer; plain text (as of /readyz) becomes a message."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text.decode(errors="replace")}


def condition(found: Object, kind: str, status: str = "True") -> Object | None:
    """The condition `kind` of an object, when it is there and has that status."""
    conditions = found.get("status", {}).get("conditions") or []  # null in a CRD that is a moment old
    return next((one for one in conditions if one["type"] == kind and one["status"] == status), None)
