"""A small asynchronous client of the Kubernetes API: the verbs that the operator uses.

Nothing is generated and nothing is modelled: objects are plain dictionaries. Requests that the
server could not take (429, 5xx, a cut connection) are repeated with jittered backoff; what it
refused is an ApiError with its own reason.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from tunewright_operator.reconcile.credentials import Bearer, Credentials
from tunewright_operator.reconcile.resources import Resource

Object = dict[str, Any]

MANAGER = "tunewright"
"""Our name in managedFields: what server-side apply tells our fields from others' by."""

_ATTEMPTS = 5
_BASE, _CAP = 0.2, 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError)


class ApiError(Exception):
    """The API server's refusal: HTTP status, `reason` and `message` in its own words."""

    def __init__(self, status: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message, self.details = status, reason, message, details or {}

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Somebody wrote in between (or the object exists, for a create)."""
        return self.status == 409

    @property
    def gone(self) -> bool:
        """The continue token or resource version is too old."""
        return self.status == 410

    @property
    def final(self) -> bool:
        """The same request would be refused again: the object itself is what is wrong."""
        return self.status in (400, 403, 405, 413, 415, 422)


class UnreachableError(Exception):
    """The API server did not answer, however often it was asked."""


class Client:
    """One API server.

    reload:  brings new credentials after a 401 that a fresh token file did not cure.
    count:   told of every request: verb, plural, HTTP status (0: no answer).
    connections: at most; each costs 350 kB of TLS buffers, and more of them make nothing faster.
    """

    def __init__(
        self,
        credentials: Credentials,
        reload: Callable[[], Awaitable[Credentials]] | None = None,
        count: Callable[[str, str, int], None] = lambda verb, plural, status: None,
        connections: int = 16,
    ) -> None:
        self.credentials, self.reload, self.count = credentials, reload, count
        self._connections = connections
        self._bearer = Bearer(credentials)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object, None when there is none."""
        try:
            return await self.request("GET", resource, resource.url(namespace, name))
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        selector: str | None = None,
        *,
        fields: str | None = None,
        page: int = 100,
        metadata: bool = False,
    ) -> AsyncIterator[Object]:
        """Every object of a kind, in pages, so that neither side ever holds them all.

        metadata: only names, uids and versions are sent. Raises ApiError with `gone` when the list
        took longer than the server keeps its snapshot; the caller starts again.
        """
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" if metadata else None
        params: dict[str, str] = {"limit": str(page)}
        if selector:
            params["labelSelector"] = selector
        if fields:
            params["fieldSelector"] = fields
        while True:
            url = resource.url(namespace)
            body = await self.request("GET", resource, url, params=params, accept=accept, verb="LIST")
            for item in body.get("items") or []:
                yield item
            following = body["metadata"].get("continue")
            if not following:
                return
            params["continue"] = following

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Creates a named object. Raises ApiError with `conflict` when it exists."""
        params = {"fieldManager": MANAGER}
        return await self.request("POST", resource, resource.url(namespace), body, params=params)

    async def apply(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Server-side apply: our fields become what `body` says, others' stay."""
        params = {"fieldManager": MANAGER, "force": "true"}
        url = resource.url(namespace, body["metadata"]["name"])
        kind = "application/apply-patch+yaml"
        return await self.request("PATCH", resource, url, body, params=params, kind=kind, verb="APPLY")

    async def patch(
        self, resource: Resource, namespace: str, name: str, change: Object, sub: str | None = None
    ) -> Object:
        """A merge patch. With metadata.resourceVersion in it the server refuses it (409) when
        somebody wrote in between."""
        url, kind = resource.url(namespace, name, sub), "application/merge-patch+json"
        params = {"fieldManager": MANAGER}
        return await self.request("PATCH", resource, url, change, params=params, kind=kind)

    async def delete(
        self, resource: Resource, namespace: str, name: str, uid: str | None = None, *, wait: bool = False
    ) -> bool:
        """Deletes an object and what it owns. Returns False when there is none or when the name
        belongs to another object than `uid` by now.

        wait: the object stays, marked as deleted, until what it owns is gone.
        """
        body: Object = {"propagationPolicy": "Foreground" if wait else "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self.request("DELETE", resource, resource.url(namespace, name), body)
        except ApiError as error:
            if error.missing or error.conflict:
                return False
            raise
        return True

    async def served(self, resource: Resource) -> bool:
        """Whether the cluster has this kind."""
        url = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        try:
            found = await self.request("GET", resource, url, verb="DISCOVER")
        except ApiError as error:
            if error.missing:
                return False
            raise
        return any(r["name"] == resource.plural for r in found.get("resources") or [])

    async def request(
        self,
        method: str,
        resource: Resource,
        url: str,
        body: Object | None = None,
        *,
        params: dict[str, str] | None = None,
        kind: str = "application/json",
        accept: str | None = None,
        verb: str | None = None,
    ) -> Object:
        """One request, repeated while the server cannot take it. Raises ApiError or UnreachableError."""
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        renewed = False
        for attempt in range(1, _ATTEMPTS + 1):
            wait: float | None = None
            status = 0
            headers = {"Accept": accept or "application/json", "Content-Type": kind, **self._bearer.header()}
            try:
                async with self._opened().request(
                    method, self.credentials.server + url, data=data, params=params, headers=headers
                ) as answer:
                    status = answer.status
                    text = await answer.read()
                    wait = _seconds(answer.headers.get("Retry-After"))
            except _BROKEN as error:
                self.count(verb or method, resource.plural, 0)
                if attempt == _ATTEMPTS:
                    raise UnreachableError(
                        f"{method} {url}: {type(error).__name__} {error}".strip()
                    ) from error
            else:
                self.count(verb or method, resource.plural, status)
                if status < 400:
                    return dict(json.loads(text))
                problem = _problem(status, text)
                if status == 401 and not renewed:
                    renewed = True
                    await self._renew()
                    continue
                # A timeout of the server is retried; of a create it may have been done: the caller sees 409.
                if not (status == 429 or status >= 500) or attempt == _ATTEMPTS:
                    raise problem
            backoff = min(_CAP, _BASE * 2 ** (attempt - 1)) * (0.5 + random.random())
            await asyncio.sleep(backoff if wait is None else min(wait, 30.0) + random.random())
        raise UnreachableError(f"{method} {url}: the credentials were refused after they were renewed")

    async def _renew(self) -> None:
        self._bearer.stale()
        if self.reload is not None and not self.credentials.token_file:
            self.credentials = await self.reload()
            self._bearer = Bearer(self.credentials)
            await self.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            tls = self.credentials.tls()
            connector = aiohttp.TCPConnector(limit=self._connections, ssl=tls if tls is not None else True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)
        return self._session


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None


def _problem(status: int, text: bytes) -> ApiError:
    try:
        body = json.loads(text)
        return ApiError(status, body.get("reason") or "", body.get("message") or "", body.get("details"))
    except (ValueError, AttributeError):
        return ApiError(status, "", text[:300].decode(errors="replace"))
