"""hf:// against a hub on loopback that speaks what the client asks for."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": bytes(range(256)) * 5000,
    "pytorch_model.bin": b"old weights",
    "sub/extra.json": b"{}",
}


@dataclass
class Hub:
    url: str = ""
    token: str | None = None
    gated: bool = False
    fail: int = 0
    corrupt: bool = False
    log: list[str] = field(default_factory=list)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def say(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            made.log.append(f"{self.command} {self.path}")
            if made.fail:
                made.fail -= 1
                return self.say(503)
            if made.token and self.headers.get("Authorization") != f"Bearer {made.token}":
                code = "GatedRepo" if made.gated else "RepoNotFound"
                return self.say(403 if made.gated else 401, b"{}", X_Error_Code=code)
            path = self.path.split("?")[0]
            if path.startswith("/api/models/org/model/revision/"):
                if path.rsplit("/", 1)[1] not in ("main", COMMIT):
                    return self.say(404, b"{}", X_Error_Code="RevisionNotFound")
                siblings = [self.sibling(name, data) for name, data in FILES.items()]
                body = {"id": "org/model", "modelId": "org/model", "sha": COMMIT, "siblings": siblings}
                return self.say(200, json.dumps(body).encode(), Content_Type="application/json")
            if path.startswith("/api/models/org/model/tree/"):
                tree = [
                    {"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in FILES.items()
                ]
                return self.say(200, json.dumps(tree).encode(), Content_Type="application/json")
            if path.startswith("/api/models/org/model/paths-info/"):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                tree = [
                    {"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in FILES.items()
                ]
                return self.say(200, json.dumps(tree).encode(), Content_Type="application/json")
            name = path.removeprefix(f"/org/model/resolve/{COMMIT}/")
            if name in FILES:
                return self.file(FILES[name])
            return self.say(404, b"{}", X_Error_Code="RepoNotFound")

        def sibling(self, name: str, data: bytes) -> dict[str, Any]:
            item: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(data).hexdigest()
                item["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            return item

        def file(self, data: bytes) -> None:
            headers = {
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes",
            }  # fmt: skip
            if made.corrupt and len(data) > 1000:
                data = data[:500] + b"?" + data[501:]
            span = self.headers.get("Range", "").removeprefix("bytes=")
            if not span:
                return self.say(200, data, **headers)
            begin, _, end = span.partition("-")
            part = data[int(begin) : int(end) + 1 if end else None]
            headers["Content_Range"] = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}"
            return self.say(206, part, **headers)

        do_HEAD = do_POST = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(hub: Hub, top: Path, code: str, **environment: str) -> dict[str, Any]:
    """Runs `code` (which sets `found`) in a process: the client reads its settings when it is imported."""
    program = f"""
import json
from pathlib import Path
from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.storage import hub
hub.TRIES = 2
work, found = Path({str(top / "work")!r}), None
def tell(uri, **more):
    path = storage.localize(uri, work, place="model.source", **more)
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
def fetched():
    store = storage.store('hf://org/model')
    entry = next(e for e in store.entries() if e.name == 'model.safetensors')
    part = store.read('model.safetensors', 1000, 16).hex()
    store.fetch(entry, work / 'model.safetensors')
    return [store.commit, part, store.digest('model.safetensors'), (work / 'model.safetensors').stat().st_size]
try:
    {code}
except UserError as error:
    found = {{"user": str(error)}}
except storage.StorageError as error:
    found = {{"storage": str(error)}}
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("HF_")}, "HF_ENDPOINT": hub.url,
            "HF_HOME": str(top / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment,
        },
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {"found": json.loads(done.stdout.splitlines()[-1])}


def test_a_repository_is_fetched_at_its_commit_and_then_read_offline(hub: Hub, tmp_path: Path) -> None:
    files = run(hub, tmp_path, "found = tell('hf://org/model')")["found"]
    assert files == ["config.json", "model.safetensors", "sub/extra.json"]
    assert not any("pytorch_model" in line for line in hub.log)
    assert all(COMMIT in line for line in hub.log if "/resolve/" in line)
    hub.log.clear()
    again = run(hub, tmp_path, "found = tell('hf://org/model')", HF_HUB_OFFLINE="1")["found"]
    assert again == files and not hub.log
    code = "found = storage.localize('hf://org/model/sub/extra.json', work).read_text()"
    assert run(hub, tmp_path, code, HF_HUB_OFFLINE="1")["found"] == "{}"


def test_a_store_reads_parts_and_fetches_files_that_it_has_checked(hub: Hub, tmp_path: Path) -> None:
    code = "found = fetched()"
    data = FILES["model.safetensors"]
    assert run(hub, tmp_path, code)["found"] == [
        COMMIT, data[1000:1016].hex(), f"sha256:{hashlib.sha256(data).hexdigest()}", len(data),
    ]  # fmt: skip


def test_a_file_that_arrives_damaged_is_not_used(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt = True
    code = "found = fetched()"
    assert "arrived damaged" in run(hub, tmp_path, code)["found"]["storage"]
    assert not (tmp_path / "work" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("gated", "token", "says"),
    [
        (False, None, "a client without a token finds no such repository"),
        (True, None, "Accept its terms"),
        (True, "wrong", "the token in HF_TOKEN has no access"),
    ],
)
def test_a_repository_that_may_not_be_read_says_what_to_do(
    gated: bool, token: str | None, says: str, hub: Hub, tmp_path: Path
) -> None:
    hub.token, hub.gated = "right", gated
    told = run(hub, tmp_path, "found = tell('hf://org/model')", **({"HF_TOKEN": token} if token else {}))
    assert says in told["found"]["user"] and "model.source" in told["found"]["user"]


def test_a_hub_that_is_busy_for_a_moment_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.fail = 1
    assert run(hub, tmp_path, "found = tell('hf://org/model')")["found"]


def test_the_token_comes_from_the_environment(hub: Hub, tmp_path: Path) -> None:
    hub.token = "right"
    assert run(hub, tmp_path, "found = tell('hf://org/model')", HF_TOKEN="right")["found"]


@pytest.mark.parametrize(
    ("code", "environment", "kind", "says"),
    [
        ("found = tell('hf://org/model', revision='v9')", {}, "user", "no such revision"),
        ("found = tell('hf://org/model')", {"HF_HUB_OFFLINE": "1"}, "user", "not in the local cache"),
        (
            "found = tell('hf://org/model')",
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "storage",
            "hf://org/model",
        ),
        ("storage.store('hf://org/model').put('x', b'')", {}, "user", "can only be read"),
    ],
)
def test_what_goes_wrong_is_told_apart(
    code: str, environment: dict[str, str], kind: str, says: str, hub: Hub, tmp_path: Path
) -> None:
    assert says in run(hub, tmp_path, code, **environment)["found"][kind]
