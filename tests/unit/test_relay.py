"""Progress leaves a pod by patching one key of one ConfigMap, and never more often than agreed."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from tunewright_workloads import relay


@pytest.fixture
def server():
    """An API server that keeps what it was sent; `status` is what it answers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PATCH(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.calls.append((self.path, dict(self.headers), body))
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(b"no")

        def log_message(self, *args):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.calls, made.status = [], 200
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def account(tmp_path):
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def patcher(server, account):
    url = f"http://127.0.0.1:{server.server_port}"
    return relay.patcher(url, "team", "bot-progress", "progress.json", account)


def test_one_key_is_merged_into_one_configmap(server, account):
    patcher(server, account)("hello")
    ((path, headers, body),) = server.calls
    assert path == "/api/v1/namespaces/team/configmaps/bot-progress"
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["Authorization"] == "Bearer first"
    assert body == {"data": {"progress.json": "hello"}}


def test_a_rotated_token_is_read_anew(server, account):
    patch = patcher(server, account)
    patch("a")
    (account / "token").write_text("second")
    patch("b")
    assert [headers["Authorization"] for _, headers, _ in server.calls] == ["Bearer first", "Bearer second"]


def test_a_refusal_says_what_the_server_said(server, account):
    server.status = 403
    with pytest.raises(OSError, match="403: no"):
        patcher(server, account)("a")


def test_only_news_is_written(tmp_path):
    sent: list[str] = []
    file = tmp_path / "progress.json"
    one = relay.Relay(file, sent.append)
    assert one.turn() is False, "there is no record yet"
    file.write_text("a")
    assert one.turn() is True
    assert one.turn() is False
    file.write_text("b")
    assert one.turn() is True
    assert sent == ["a", "b"]


def test_what_was_not_written_is_tried_again_with_the_newest(tmp_path):
    sent: list[str] = []
    down = [True]

    def patch(text: str) -> None:
        if down[0]:
            raise OSError("connection refused")
        sent.append(text)

    file = tmp_path / "progress.json"
    one = relay.Relay(file, patch)
    file.write_text("a")
    assert one.turn() is False
    file.write_text("b")
    down[0] = False
    assert one.turn() is True
    assert sent == ["b"]


def test_a_file_that_is_no_record_is_left_out(tmp_path):
    sent: list[str] = []
    file = tmp_path / "progress.json"
    file.write_bytes(b"x" * (relay.LIMIT + 1))
    assert relay.Relay(file, sent.append).turn() is False
    assert sent == []


def test_the_last_record_is_written_when_the_pod_ends(tmp_path):
    sent: list[str] = []
    file = tmp_path / "progress.json"
    stop = threading.Event()
    one = relay.Relay(file, sent.append)
    thread = threading.Thread(target=relay.run, args=(one, 3600, stop))
    thread.start()
    file.write_text("done")
    stop.set()
    thread.join(10)
    assert sent == ["done"]


def test_writes_are_at_least_so_far_apart(tmp_path):
    sent: list[str] = []
    file = tmp_path / "progress.json"

    class Clock(threading.Event):
        """Counts the waits; every wait changes the file."""

        waits: list[float] = []  # noqa: RUF012

        def wait(self, timeout=None):
            self.waits.append(timeout)
            file.write_text(str(len(self.waits)))
            return len(self.waits) > 3

    clock = Clock()
    relay.run(relay.Relay(file, sent.append), 10, clock)
    assert set(clock.waits) == {10}
    assert len(sent) == len(clock.waits)
