"""Whose output a directory is, and what a run may do with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.rows import environment
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.progress import ProgressFile, read
from tunewright_workloads.train import output
from tunewright_workloads.train.metrics import Metrics
from tunewright_workloads.train.metrics import read as lines

MINE = {"training.seed": 1, "adapter.rank": 8}


@pytest.fixture
def out(tmp_path: Path) -> output.Output:
    return output.Output(f"file://{tmp_path}/out", tmp_path / "work")


def committed(out: output.Output, step: int = 5) -> None:
    (Path(out.checkpoints) / str(step)).mkdir(parents=True)


def test_a_fresh_output_is_taken_and_named(out: output.Output) -> None:
    assert output.claim(out, MINE, "ns/a") is None
    assert output.document(out, output.RUN) == {"job": "ns/a", "identity": MINE}


def test_the_same_run_may_come_again(out: output.Output) -> None:
    output.claim(out, MINE, "ns/a")
    committed(out)
    assert output.claim(out, MINE, "ns/a") is None


def test_a_finished_run_is_recognised(out: output.Output) -> None:
    output.claim(out, MINE, "ns/a")
    committed(out)
    out.write(output.REPORT, json.dumps({"training": {"steps": 5}}))
    assert output.claim(out, MINE, "ns/a") == {"training": {"steps": 5}}


@pytest.mark.parametrize("finished", [False, True])
def test_another_runs_checkpoints_are_refused_with_every_field_that_differs(
    out: output.Output, finished: bool
) -> None:
    output.claim(out, MINE, "ns/a")
    committed(out)
    if finished:
        out.write(output.REPORT, "{}")
    with pytest.raises(UserError) as error:
        output.claim(out, {"training.seed": 2, "adapter.rank": 8, "adapter.alpha": 3}, "ns/b")
    text = error.value.text()
    assert "holds another run of ns/a" in text
    assert f"training.seed: was 1 when {out.uri} was written (got 2)" in text
    assert f"adapter.alpha: was null when {out.uri} was written (got 3)" in text
    assert "adapter.rank" not in text
    assert json.loads((out.root / output.RUN).read_text())["job"] == "ns/a"


def test_an_output_without_checkpoints_may_be_taken_over(out: output.Output) -> None:
    output.claim(out, MINE, "ns/a")
    assert output.claim(out, {**MINE, "training.seed": 2}, "ns/a") is None


def test_checkpoints_of_unknown_origin_are_refused(out: output.Output) -> None:
    committed(out)
    with pytest.raises(UserError, match=r"there is no run\.json"):
        output.claim(out, MINE, "ns/a")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        output.Output(f"file://{tmp_path}/file/out", tmp_path).write("a", "b")


def test_metrics_are_cut_back_to_the_step_that_is_resumed(out: output.Output, tmp_path: Path) -> None:
    def attempt(start: int, stop: int) -> Metrics:
        metrics = Metrics(out, ProgressFile(tmp_path / "progress.json"), 9)
        metrics.start(start)
        for step in range(start + 1, stop + 1):
            metrics.step(step, step / 4, {"loss": 1 / step, "gradNorm": 1.0, "tokens": 7.0}, 10, 0.5)
        return metrics

    attempt(0, 5)
    with (out.root / output.METRICS).open("a") as file:
        file.write('{"event": "st')
    second = attempt(3, 9)
    second.close()
    found = lines(out)
    assert [line["step"] for line in found if line["event"] == "step"] == list(range(1, 10))
    assert [line["step"] for line in found if line["event"] == "start"] == [0, 3]
    assert second.attempts() == 2


def test_progress_has_loss_rate_and_time_left(out: output.Output, tmp_path: Path) -> None:
    metrics = Metrics(out, ProgressFile(tmp_path / "progress.json", every=0), 10)
    metrics.start(0)
    metrics.step(1, 0.25, {"loss": 2.5, "gradNorm": 1.0, "tokens": 7.0}, 100, 0.5)
    found = read(tmp_path / "progress.json")
    assert found is not None
    assert (found.step, found.total_steps, found.epoch, found.loss) == (1, 10, 0.25, 2.5)
    assert found.tokens_per_second == pytest.approx(200)
    assert found.eta is not None and 4 < (found.eta - found.time).total_seconds() < 5
    metrics.committed(1)
    metrics.message("stopped by SIGTERM", done=False)
    found = read(tmp_path / "progress.json")
    assert found is not None and found.checkpoint == 1 and "SIGTERM" in found.message


STOP = """
import sys, time
from tunewright_workloads.train.stop import Stop
stop = Stop()
if sys.argv[1] == "armed":
    stop.arm()
print("ready", flush=True)
while stop.asked is None:
    time.sleep(0.01)
print(stop.asked, flush=True)
if sys.argv[2:]:
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("arguments", "signals", "code", "says"),
    [
        (["plain"], [signal.SIGTERM], -signal.SIGTERM, ""),
        (["armed"], [signal.SIGTERM], 0, "SIGTERM\n"),
        (["armed"], [signal.SIGINT], 0, "SIGINT\n"),
        (["armed", "long"], [signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM, "SIGTERM\n"),
    ],
)
def test_signals(arguments: list[str], signals: list[signal.Signals], code: int, says: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOP, *arguments], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    heard = ""
    for number in signals:
        os.kill(process.pid, number)
        if arguments[0] == "armed" and not heard:
            heard = process.stdout.readline()
    assert process.wait(timeout=20) == code
    assert heard == says


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_record_of_the_run_is_not_called_missing(out: output.Output, content: str) -> None:
    output.claim(out, MINE, "ns/a")
    committed(out)
    out.path(output.RUN).write_text(content)
    with pytest.raises(UserError, match=r"run\.json: is damaged.*Restore the file"):
        output.claim(out, MINE, "ns/a")
    assert out.path(output.RUN).read_text() == content
