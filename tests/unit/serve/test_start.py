"""How the workload starts: its arguments, what it refuses before any model is read, vLLM's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.serving import ROOT, config, manifest
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.models import MODELS
from tunewright_workloads.gemma import architecture, tiny
from tunewright_workloads.serve import vllm
from tunewright_workloads.serve.__main__ import main

FAKE = """#!{python}
import json, os, signal, sys, time
def end(*_):
    print("draining", flush=True)
    sys.exit({code})
signal.signal(signal.SIGTERM, end)
json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, open({out!r}, "w"))
if {lives}:
    while True: time.sleep(0.05)
sys.exit({code})
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("start") / "model"
    tiny.write(target)
    manifest(target)
    return target


def fake(tmp_path: Path, code: int, lives: bool) -> Path:
    """An interpreter that writes down how it was started."""
    path = tmp_path / "python-with-vllm"
    path.write_text(
        FAKE.format(python=sys.executable, out=str(tmp_path / "seen.json"), code=code, lives=lives)
    )
    path.chmod(0o755)
    return path


def started(directory: Path, tmp_path: Path, python: Path, **changes: Any) -> subprocess.Popen[str]:
    path = tmp_path / "serve.json"
    path.write_text(config(directory, tmp_path / "work", engine="vllm", **changes).text())
    return subprocess.Popen(
        [sys.executable, "-m", "tunewright_workloads.serve", "--config", str(path)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'workloads'}",
            vllm.PYTHON: str(python),
            "OMP_NUM_THREADS": "7",
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def test_vllm_gets_the_planned_command_and_environment_and_ends_with_our_signal(
    directory: Path, tmp_path: Path
) -> None:
    process = started(directory, tmp_path, fake(tmp_path, code=0, lives=True), served_name="bot")
    seen = tmp_path / "seen.json"
    end = time.monotonic() + 60
    while not (seen.exists() and seen.read_text().endswith("}")):
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == exits.DONE, log
    found = json.loads(seen.read_text())
    assert found["arguments"][:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert {f"--model={directory}", "--served-model-name=bot", "--dtype=float32"} <= set(found["arguments"])
    assert found["environment"]["VLLM_HOST_IP"] == "127.0.0.1"
    assert found["environment"]["OMP_NUM_THREADS"] == "7", "what the user set stands above the plan"
    assert "PYTHONPATH" not in found["environment"], "our packages are not vLLM's"


@pytest.mark.parametrize("code", [1, 3, 137])
def test_a_vllm_that_ends_by_itself_is_a_failure_to_retry(directory: Path, tmp_path: Path, code: int) -> None:
    process = started(directory, tmp_path, fake(tmp_path, code=code, lives=False))
    _, log = process.communicate(timeout=60)
    assert process.returncode == exits.RETRY
    assert f"vLLM ended with code {code}" in log
    assert "Traceback" not in log


def test_without_vllm_the_way_to_install_it_is_said(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(vllm.PYTHON, raising=False)
    path = tmp_path / "serve.json"
    path.write_text(config(directory, tmp_path, engine="vllm").text())
    assert main(["--config", str(path)]) == exits.BAD_INPUT
    assert "make install-vllm" in capsys.readouterr().err
    monkeypatch.setenv(vllm.PYTHON, "/nowhere/python")
    assert main(["--config", str(path)]) == exits.BAD_INPUT
    assert f"{vllm.PYTHON}: must name a Python" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["jax", "vllm"])
def test_a_directory_without_a_manifest_is_refused_with_the_one_below_it(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    monkeypatch.setenv(vllm.PYTHON, sys.executable)
    output = tmp_path / "output"
    output.mkdir()
    (output / "merged").symlink_to(directory)
    (output / "config.json").write_text((directory / "config.json").read_text())
    path = tmp_path / "serve.json"
    path.write_text(config(output, tmp_path, engine=engine).text())
    assert main(["--config", str(path)]) == exits.BAD_INPUT
    said = capsys.readouterr().err
    assert "needs a directory with a tunewright.json" in said
    assert f"Did you mean {output / 'merged'}?" in said


def test_faults_of_the_file_are_all_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.json"
    path.write_text('{"endpoint": "x", "servedName": "y", "port": 0, "modle": "file:///m"}')
    assert main(["--config", str(path)]) == exits.BAD_INPUT
    said = capsys.readouterr().err
    for part in (
        "modle: is not a field. Did you mean model?",
        "model: is required",
        "port:",
        "work: is required",
    ):
        assert part in said


def test_the_shape_of_the_tiny_checkpoint_is_the_catalogs(directory: Path) -> None:
    found, known = vllm.spec_of(architecture.read(directory)), MODELS["gemma-4-tiny"]
    same = set(type(known).model_fields) - {"name", "source", "params", "max_context", "ple"}
    assert {f: getattr(found, f) for f in same} == {f: getattr(known, f) for f in same}
