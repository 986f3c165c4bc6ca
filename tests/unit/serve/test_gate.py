"""The gate asks the server itself."""

import http.server
import threading

import pytest

from tunewright_workloads.serve import gate


def test_no_proxy_stands_between_the_gate_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert gate.client(url, timeout=10, patience=0)("/v1/models", None) == {"data": []}
        finally:
            server.shutdown()
