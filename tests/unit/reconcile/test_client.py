"""The API client against a server that misbehaves, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tunewright_operator.reconcile import client as clients
from tunewright_operator.reconcile.client import ApiError, Client, UnreachableError
from tunewright_operator.reconcile.credentials import Bearer, Credentials, NoClusterError, in_cluster, read
from tunewright_operator.reconcile.resources import CONFIGMAP, FINETUNEJOB, JOBSET

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_BASE", 0.01)


def served(
    handler: Handler, test: Callable[[Client, list[web.Request]], Awaitable[Any]], **options: Any
) -> Any:
    """Runs `test` with a client of a server that answers by `handler`."""

    async def main() -> Any:
        seen: list[web.Request] = []

        async def record(request: web.Request) -> web.StreamResponse:
            await request.read()
            seen.append(request)
            return await handler(request)

        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", record)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Client(Credentials(f"http://127.0.0.1:{port}", token="first"), **options) as client:
                return await test(client, seen)
        finally:
            await runner.cleanup()

    return asyncio.run(asyncio.wait_for(main(), 30))


def refusal(status: int, reason: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": f"{reason} it is"}
    return web.Response(status=status, text=json.dumps(body))


def flaky(*answers: web.Response | None) -> Handler:
    """Answers in order; None cuts the connection; afterwards all is well."""
    waiting = list(answers)

    async def handler(request: web.Request) -> web.StreamResponse:
        if not waiting:
            return web.json_response({"metadata": {"name": "a"}})
        answer = waiting.pop(0)
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(status=answer.status, text=answer.text)  # one response is sent only once

    return handler


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_the_server_could_not_take_is_sent_again(status: int) -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        found = await client.get(CONFIGMAP, "team", "a")
        assert found == {"metadata": {"name": "a"}}
        assert len(seen) == 3

    served(flaky(refusal(status, "Busy"), refusal(status, "Busy")), test)


def test_a_cut_connection_is_tried_again() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        assert await client.get(CONFIGMAP, "team", "a") is not None
        assert len(seen) == 2

    served(flaky(None), test)


def test_a_server_that_stays_away_is_an_error_of_its_own() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        with pytest.raises(UnreachableError):
            await client.get(CONFIGMAP, "team", "a")

    served(flaky(*[None] * 20), test)


def test_a_server_that_stays_busy_is_its_own_refusal() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        with pytest.raises(ApiError) as error:
            await client.get(CONFIGMAP, "team", "a")
        assert error.value.status == 503

    served(flaky(*[refusal(503, "Busy")] * 20), test)


@pytest.mark.parametrize(
    ("status", "reason", "final"),
    [(403, "Forbidden", True), (422, "Invalid", True), (400, "BadRequest", True), (409, "Conflict", False)],
)
def test_a_refusal_is_told_in_the_servers_words_and_not_repeated(
    status: int, reason: str, final: bool
) -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        with pytest.raises(ApiError, match=f"{reason} it is") as error:
            await client.create(CONFIGMAP, "team", {"metadata": {"name": "a"}})
        assert (error.value.reason, error.value.final, len(seen)) == (reason, final, 1)

    served(flaky(*[refusal(status, reason)] * 9), test)


def test_what_is_not_there_is_none_for_a_get_and_false_for_a_delete() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        assert await client.get(CONFIGMAP, "team", "a") is None
        assert await client.delete(CONFIGMAP, "team", "a", "u1") is False
        assert await client.served(JOBSET) is False

    served(flaky(*[refusal(404, "NotFound")] * 9), test)


def test_refused_credentials_are_renewed_once() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer second":
            return refusal(401, "Unauthorized")
        return web.json_response({"metadata": {}})

    async def test(client: Client, seen: list[web.Request]) -> None:
        async def renew() -> Credentials:
            return Credentials(client.credentials.server, token="second")

        client.reload = renew
        assert await client.get(CONFIGMAP, "team", "a") == {"metadata": {}}
        assert len(seen) == 2

    served(handler, test)


def test_credentials_that_stay_refused_are_an_error_and_no_loop() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        async def renew() -> Credentials:
            return client.credentials

        client.reload = renew
        with pytest.raises(ApiError) as error:
            await client.get(CONFIGMAP, "team", "a")
        assert (error.value.status, len(seen)) == (401, 2)

    served(flaky(*[refusal(401, "Unauthorized")] * 9), test)


def test_a_list_comes_page_by_page() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["limit"] == "2"
        assert request.query["labelSelector"] == "x"
        page = int(request.query.get("continue", "0"))
        following = {"continue": str(page + 1)} if page < 2 else {}
        items = [{"metadata": {"name": f"{page}-{i}"}} for i in range(2)]
        return web.json_response({"metadata": following, "items": items})

    async def test(client: Client, seen: list[web.Request]) -> None:
        names = [o["metadata"]["name"] async for o in client.list(CONFIGMAP, "team", "x", page=2)]
        assert names == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]

    served(handler, test)


def test_a_list_that_expired_says_so() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        with pytest.raises(ApiError) as error:
            async for _ in client.list(CONFIGMAP):
                pass
        assert error.value.gone

    served(flaky(refusal(410, "Expired")), test)


def test_requests_say_who_writes_and_what_kind_of_patch_it_is() -> None:
    async def test(client: Client, seen: list[web.Request]) -> None:
        await client.apply(CONFIGMAP, "team", {"metadata": {"name": "a"}})
        await client.patch(FINETUNEJOB, "team", "a", {"status": {}}, "status")
        await client.delete(CONFIGMAP, "team", "a", "u1", wait=True)
        apply, patch, delete = seen
        assert apply.query == {"fieldManager": "tunewright", "force": "true"}
        assert apply.headers["Content-Type"] == "application/apply-patch+yaml"
        assert patch.path == "/apis/tunewright.dev/v1alpha1/namespaces/team/finetunejobs/a/status"
        assert patch.headers["Content-Type"] == "application/merge-patch+json"
        body = await delete.json()
        assert body == {"propagationPolicy": "Foreground", "preconditions": {"uid": "u1"}}

    served(flaky(), test)


def test_every_request_is_counted_by_verb_kind_and_answer() -> None:
    told: list[tuple[str, str, int]] = []

    async def test(client: Client, seen: list[web.Request]) -> None:
        await client.get(CONFIGMAP, "team", "a")

    served(flaky(refusal(503, "Busy")), test, count=lambda *what: told.append(what))
    assert told == [("GET", "configmaps", 503), ("GET", "configmaps", 200)]


def test_a_token_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    bearer = Bearer(Credentials("https://x", token_file=str(file)))
    assert bearer.header() == {"Authorization": "Bearer one"}
    file.write_text("two\n")
    assert bearer.header() == {"Authorization": "Bearer one"}
    bearer.stale()
    assert bearer.header() == {"Authorization": "Bearer two"}


def test_a_pods_own_account_is_found_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("token", "t"), ("ca.crt", "pem"), ("namespace", "team\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert in_cluster(tmp_path) is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = in_cluster(tmp_path)
    assert found is not None
    assert (found.server, found.namespace, found.bearer()) == ("https://[fd00::1]:443", "team", "t")


ANSWER = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "from-plugin"},
}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443/"}}],
    "users": [
        {"name": "plain", "user": {"token": "secret"}},
        {
            "name": "plugin",
            "user": {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "sh",
                    "args": [
                        "-c",
                        f"echo '{json.dumps(ANSWER)}'",
                    ],
                    "interactiveMode": "Never",
                }
            },
        },
    ],
    "contexts": [
        {"name": "a", "context": {"cluster": "c", "user": "plain", "namespace": "team"}},
        {"name": "b", "context": {"cluster": "c", "user": "plugin"}},
    ],
}


def test_a_kubeconfig_is_read_with_its_plugins(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(json.dumps(KUBECONFIG))
    found = read(str(file))
    assert (found.server, found.token, found.namespace) == ("https://api.example:6443", "secret", "team")
    assert read(str(file), "b").token == "from-plugin"


def test_without_any_configuration_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoClusterError, match="Set KUBECONFIG"):
        read(str(tmp_path / "nothing"))
