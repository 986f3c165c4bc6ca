"""Filling a compile cache, with a server in vLLM's place that answers, ends or never becomes ready."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.serving import config, manifest
from tunewright_workloads.contract import engine, exits
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import tiny
from tunewright_workloads.serve import vllm, warm
from tunewright_workloads.serve.__main__ import main

SERVER = """#!{python}
import http.server, pathlib, signal, sys
log = pathlib.Path({log!r})
log.write_text(log.read_text() + "started\\n" if log.exists() else "started\\n")
if {code} is not None:
    sys.exit({code})
def end(*_):
    log.write_text(log.read_text() + "ended\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
class Health(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Health.asked += 1
        self.send_response(200 if {ready} and Health.asked > 1 else 503)
        self.end_headers()
    def log_message(self, *_): pass
port = next(a for a in sys.argv if a.startswith("--port=")).removeprefix("--port=")
http.server.HTTPServer(("127.0.0.1", int(port)), Health).serve_forever()
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("warm") / "model"
    tiny.write(target)
    manifest(target)
    return target


class Case:
    """A configuration whose vLLM is the small server above."""

    def __init__(self, directory: Path, tmp_path: Path, ready: bool = True, code: int | None = None) -> None:
        self.log, self.cache = tmp_path / "log", tmp_path / "cache" / "key"
        self.python = tmp_path / "python"
        self.python.write_text(
            SERVER.format(python=sys.executable, log=str(self.log), ready=ready, code=code)
        )
        self.python.chmod(0o755)
        settings = config(directory, tmp_path / "work", engine="vllm", compile_cache=str(self.cache))
        self.path = tmp_path / "serve.json"
        self.path.write_text(settings.text())

    def run(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setenv(vllm.PYTHON, str(self.python))
        return main(["--config", str(self.path), "--warm-up"])

    @property
    def marker(self) -> Path:
        return self.cache / warm.MARKER


def test_a_cache_is_filled_by_one_start_and_found_filled_afterwards(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(directory, tmp_path)
    assert case.run(monkeypatch) == exits.DONE
    assert json.loads(case.marker.read_text())["seconds"] >= 0
    assert case.run(monkeypatch) == exits.DONE
    assert case.log.read_text() == "started\nended\n"


def test_a_start_that_fails_leaves_the_cache_unfilled_and_may_be_tried_again(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(directory, tmp_path, code=3)
    assert case.run(monkeypatch) == exits.RETRY
    assert "vLLM ended with code 3 before it was ready" in capsys.readouterr().err
    assert not case.marker.exists()


def test_a_start_that_takes_longer_than_its_budget_is_ended(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(directory, tmp_path, ready=False)
    budgets = engine.Budgets(1, 1, 1, 1, 1, 1)
    monkeypatch.setattr(engine, "budgets", lambda _: budgets)
    assert case.run(monkeypatch) == exits.RETRY
    assert "not ready in time" in capsys.readouterr().err
    assert not case.marker.exists()
    assert case.log.read_text().endswith("ended\n")


def test_a_signal_ends_the_start_and_leaves_the_cache_unfilled(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(directory, tmp_path, ready=False)
    monkeypatch.setenv(vllm.PYTHON, str(case.python))
    command = [sys.executable, "-m", "tunewright_workloads.serve", "--config", str(case.path), "--warm-up"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not case.log.exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)  # until it has its handler
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == exits.RETRY
    assert not case.marker.exists()


@pytest.mark.parametrize("changes", [{"engine": "jax", "compile_cache": "/c"}, {"engine": "vllm"}])
def test_without_a_cache_or_without_vllm_there_is_nothing_to_fill(
    directory: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match="--warm-up: needs engine vllm and a compileCache"):
        warm.fill(config(directory, tmp_path, **changes))
