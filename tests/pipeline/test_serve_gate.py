"""The gate lets a right model pass and stops each wrong one, with the prompt and the difference."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support import merged
from support.serving import CACHE, config, manifest, serving
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.serve import engine, gate, probes
from tunewright_workloads.serve.app import State, create
from tunewright_workloads.serve.verify import read

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return merged.base(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def right(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Merged as it should be, with the probes that a merge records."""
    target = merged.merge(base, tmp_path_factory.mktemp("right") / "model")
    manifest(target, probes.record(target))
    return target


@pytest.fixture(scope="module")
def recorded(right: Path) -> list[Probe]:
    return read(right).probes


def asked(directory: Path, work: Path, dtype: str, gate_dtype: str | None = None) -> gate.Report:
    """The gate's report on the small engine over `directory`, in this process."""
    settings = config(directory, work, dtype=dtype, max_model_length=128, compile_cache=str(CACHE))
    state = State()
    state.engine = engine.load(settings, directory)
    client = TestClient(create(state))

    def post(path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        response = client.get(path) if body is None else client.post(path, json=body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    try:
        return gate.check(post, read(directory), model="tiny", dtype=gate_dtype or dtype)
    finally:
        state.engine.scheduler.stop()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_right_model_passes_in_the_types_it_is_served_in(right: Path, tmp_path: Path, dtype: str) -> None:
    report = asked(right, tmp_path, dtype)
    assert report.passed, report.text()
    assert (report.probes, report.tokens) == (
        len(probes.QUESTIONS) + 1,
        (len(probes.QUESTIONS) + 1) * probes.TOKENS,
    )
    assert report.worst < gate.TOLERANCES[dtype].one / 2, "the tolerance must leave room"
    print(dtype, report.text())


def test_a_server_that_says_it_computes_in_less_is_held_to_that(right: Path, tmp_path: Path) -> None:
    report = asked(right, tmp_path, "bfloat16", gate_dtype="float32")
    assert report.passed, report.text()
    assert report.dtype == "bfloat16"


Wrong = Callable[[Path, Path, Path, list[Probe]], Path]


def _unmerged(base: Path, right: Path, target: Path, recorded: list[Probe]) -> Path:
    return merged.edit(base, target, lambda n, t: t, recorded)


def _doubled(base: Path, right: Path, target: Path, recorded: list[Probe]) -> Path:
    manifest(merged.merge(base, target, scale=2), recorded)
    return target


def _zeroed(base: Path, right: Path, target: Path, recorded: list[Probe]) -> Path:
    return merged.with_zeroed_layer(right, target, recorded)


def _other_words(base: Path, right: Path, target: Path, recorded: list[Probe]) -> Path:
    return merged.with_other_tokenizer(right, target, recorded)


@pytest.mark.parametrize(
    ("wrong", "says", "dtype"),
    [
        pytest.param(_unmerged, "log-probabilit", "bfloat16", id="adapter not merged"),
        pytest.param(_doubled, "log-probabilit", "bfloat16", id="alpha doubled"),
        pytest.param(_zeroed, "log-probabilit", "bfloat16", id="layer zeroed"),
        pytest.param(_other_words, "its tokenizer makes other tokens", "bfloat16", id="other tokenizer"),
        # The wider tolerance is the harder test; once in the narrow one, too.
        pytest.param(_zeroed, "log-probabilit", "float32", id="layer zeroed, float32"),
    ],
)
def test_a_wrong_model_fails_by_prompt_and_difference(
    base: Path, right: Path, recorded: list[Probe], tmp_path: Path, wrong: Wrong, says: str, dtype: str
) -> None:
    report = asked(wrong(base, right, tmp_path / "model", recorded), tmp_path, dtype)
    assert not report.passed
    assert says in report.text()
    assert re.search(r"prompt \d \(", report.text())
    print(dtype, report.text()[:300])


def test_a_model_with_a_tensor_removed_does_not_even_start_here(
    right: Path, recorded: list[Probe], tmp_path: Path
) -> None:
    directory = merged.without_tensor(right, tmp_path / "model", recorded)
    with pytest.raises(UserError, match=r"layers\.1\.mlp\.up_proj"):
        engine.load(config(directory, tmp_path), directory)


def test_the_gates_command_passes_fails_and_says_which(
    right: Path, base: Path, recorded: list[Probe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = merged.edit(base, tmp_path / "wrong", lambda n, t: t, recorded)
    common = ["--dtype", "float32", "--report", str(tmp_path / "report.json")]
    with serving(right, tmp_path / "work", max_model_length=128) as server:
        assert gate.main(["--url", server.url, "--model-dir", str(right), *common]) == exits.DONE
        assert "passed: 9 prompts" in capsys.readouterr().out
        assert json.loads((tmp_path / "report.json").read_text())["passed"] is True
        # The server is right and the directory another: not what should be served.
        assert (
            gate.main(["--url", server.url, "--model-dir", str(right), "--name", "other", *common])
            == exits.BAD_INPUT
        )
        assert '["tiny"] and not "other"' in capsys.readouterr().err
        (wrong / "config.json").unlink()
        assert gate.main(["--url", server.url, "--model-dir", str(wrong), *common]) == exits.BAD_INPUT
        assert "config.json: is in the manifest" in capsys.readouterr().err
    gone = ["--url", server.url, "--model-dir", str(right), "--patience", "0", *common]
    assert gate.main(gone) == exits.RETRY
    assert "does not answer" in json.loads((tmp_path / "report.json").read_text())["text"]
