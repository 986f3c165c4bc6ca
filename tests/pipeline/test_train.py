"""Real training of the tiny model on CPU: determinism, kills, signals, refusals."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.rows import assistant, chat, environment, user, write
from support.training import Job
from tunewright_workloads.contract import exits

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with one compilation cache for every process of this module."""
    path = tmp_path_factory.mktemp("train")
    before = {name: os.environ.get(name) for name in CACHE}
    os.environ.update({k: v.format(path / "cache") for k, v in CACHE.items()})
    yield path
    for name, value in before.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value


CACHE = {"JAX_COMPILATION_CACHE_DIR": "{}", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}


@pytest.fixture(scope="module")
def validation(space: Path) -> str:
    return f"file://{write(space / 'val.jsonl', chat(user('What is it?'), assistant('An operator.')))}"


@pytest.fixture(scope="module")
def whole(space: Path, validation: str) -> Job:
    """The run that nothing interrupts, with validation."""
    job = Job(space / "whole", dataset={"validation": [validation]})
    process = job.child()
    text, _ = process.communicate(timeout=300)
    assert process.returncode == exits.DONE, text
    job.text = text  # type: ignore[attr-defined]
    return job


def same(one: Job, other: Job) -> None:
    """Losses and the last adapter are equal, bit for bit."""
    assert one.losses() == other.losses()
    a, b = one.adapter(9), other.adapter(9)
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert value.tobytes() == b[key].tobytes(), key


def digest(directory: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()


def test_a_run_learns_and_leaves_checkpoints_metrics_and_a_report(whole: Job) -> None:
    losses = whole.losses()
    assert list(losses) == list(range(1, 10))
    assert losses[9] < losses[1]
    assert whole.committed() == [3, 6, 9]
    report = whole.report()
    assert [p["step"] for p in report["loss"]] == list(losses)
    assert report["training"]["steps"] == 9
    assert report["adapter"]["modules"][0] == "layers.0.self_attn.q_proj.weight"
    assert len(report["adapter"]["modules"]) == 4 * 7 - 1  # one projection is K and V of the global layer
    assert report["adapter"]["params"] == sum(a.size for a in whole.adapter(9).values())
    assert report["data"]["tokensUseful"] < report["data"]["tokensPadded"] == 9 * 4 * 48
    assert report["evalLoss"] == whole.progress()["evalLoss"]
    assert report["precision"] == {
        "base": "float32",
        "compute": "float32",
        "adapter": "float32",
        "moments": "float32",
    }
    assert {"jax", "qwix", "google-tunix"} <= report["versions"].keys()
    assert [line["step"] for line in whole.lines() if line["event"] == "evaluation"] == [3, 6, 9]
    progress = whole.progress()
    assert progress["done"] and progress["step"] == progress["totalSteps"] == progress["checkpoint"] == 9
    assert {value.dtype for value in whole.adapter(9).values()} == {np.dtype("float32")}
    text: str = whole.text  # type: ignore[attr-defined]
    assert "step 1/9" in text and "step 9/9" in text and "38 of 38" in text


def test_a_finished_run_says_so_at_once_and_without_jax(whole: Job) -> None:
    before, artifacts = digest(whole.out), whole.progress()["artifacts"]
    assert len(artifacts["adapter"]) == len(artifacts["dataset"]) == 64
    code = (
        "import sys; from tunewright_workloads.train.__main__ import main;"
        f"code = main(['--config', {str(whole.file)!r}]);"
        "bad = {'jax', 'orbax', 'flax'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == exits.DONE, done.stderr
    assert "done before: 9 steps" in done.stdout
    assert whole.progress()["artifacts"] == artifacts
    assert digest(whole.out) == before


def test_another_configuration_is_refused_with_the_fields_that_differ(
    whole: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Job(whole.directory, training={"learningRate": 1e-3, "seed": 7})
    try:
        assert other.here() == exits.BAD_INPUT
    finally:
        whole.configure(dataset=whole.config["dataset"])
    text = capsys.readouterr().err
    assert "training.learningRate: was 0.005" in text and "(got 0.001)" in text
    assert "training.seed: was 42" in text
    assert "holds another run of test/tiny" in text
    assert "adapter.rank" not in text


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Reads output until a line has `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"no {text!r} in:\n{seen}")


KILL_IN_SAVE = """
import os, threading
from tunewright_workloads.train.checkpoints import Checkpoints
save = Checkpoints.save
def killing(self, step, *args):
    save(self, step, *args)
    if step == 6:
        os.kill(os.getpid(), 9)  # the arrays are being written in the background
Checkpoints.save = killing
"""

KILL_BETWEEN = """
import os, time
from tunewright_workloads.train.metrics import Metrics
note = Metrics.step
def killing(self, step, *args):
    note(self, step, *args)
    if step == 5:
        while not (self.output.root / "checkpoints" / "3").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
Metrics.step = killing
"""


@pytest.mark.parametrize(
    ("code", "resumes"), [(KILL_BETWEEN, (3,)), (KILL_IN_SAVE, (3, 6))], ids=["between", "save"]
)
def test_a_killed_run_continues_with_the_same_losses_and_ends_in_the_same_adapter(
    space: Path,
    whole: Job,
    validation: str,
    code: str,
    resumes: tuple[int, ...],
    request: pytest.FixtureRequest,
) -> None:
    job = Job(space / request.node.callspec.id, dataset={"validation": [validation]})
    killed = job.child(code)
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert job.committed()
    again = job.child()
    text, _ = again.communicate(timeout=300)
    assert again.returncode == exits.DONE, text
    assert any(f"resuming after step {s}" in text for s in resumes), text
    same(whole, job)
    assert job.report()["attempts"] == 2
    assert not [p.name for p in (job.out / "checkpoints").iterdir() if "tmp" in p.name]


def test_a_run_that_is_asked_to_stop_saves_its_step_and_says_so(
    space: Path, whole: Job, validation: str
) -> None:
    job = Job(space / "stopped", dataset={"validation": [validation]}, checkpointEvery=4)
    slow = """
import time
from tunewright_workloads.train.metrics import Metrics
note = Metrics.step
Metrics.step = lambda self, step, *args: (note(self, step, *args), step >= 2 and time.sleep(1))[0]
"""
    process = job.child(slow)
    wait_for(process, "step 1/9")
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == exits.PREEMPTED, text
    (saved,) = job.committed()
    assert "SIGTERM" in job.progress()["message"] and f"step {saved}" in job.progress()["message"]
    assert job.progress()["checkpoint"] == saved
    assert job.here() == exits.DONE
    same(whole, job)


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_levers(
    space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(space / "nan", training={"learningRate": 1e30, "warmupSteps": 0, "maxGradNorm": None})
    assert job.here() == exits.BAD_INPUT
    text = capsys.readouterr().err
    assert "must be finite" in text and "training.learningRate (1e+30)" in text
    assert not (job.out / "report.json").exists()
    assert all(np.isfinite(v).all() for s in job.committed() for v in job.adapter(s).values())
    assert "must be finite" in job.progress()["message"]


BAD: dict[str, tuple[dict[str, Any] | None, list[Any], str]] = {
    "cut off": (None, [chat(), '{"messages": [{"role": "us'], "train.jsonl:2: is not JSON"),
    "null content": (None, [chat(), chat(user(None), assistant())], "train.jsonl:2: messages[0].content"),
    "roles of another format": (None, [{"conversations": []}], "train.jsonl:1: (row)"),
    "latin 1": (None, [b'{"text": "caf\xe9"}'], "train.jsonl:1: must be UTF-8"),
    "nothing": (None, [""], "train.jsonl: holds no rows"),
    "no answer": (None, [chat(user("a"), assistant(" "))], "no row is left to train on"),
    "all too long": ({"maxLength": 8}, [chat()], "Raise dataset.maxLength"),
    "too long for the model": ({"maxLength": 4096}, [chat()], "at most the model's context, 2048"),
    "overlong": ({"maxLength": 16, "overlong": "fail"}, [chat()], "train.jsonl:1: is "),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_dataset_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    changes, rows, says = BAD[case]
    path = write(tmp_path / "train.jsonl", *rows)
    job = Job(tmp_path, dataset={"train": [f"file://{path}"], **(changes or {})})
    assert job.here() == exits.BAD_INPUT
    assert says in capsys.readouterr().err
    assert not job.committed() and not (job.out / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": {"train": ["file:///nowhere/a.jsonl"]}}, "dataset.train[0]"),
        ({"model": {"source": "file:///nowhere"}}, "model.source"),
        ({"training": {"microBatchSize": 3}}, "must divide training.globalBatchSize, 4"),
        ({"training": {"stepz": 3}}, "Did you mean steps?"),
        ({"output": "sample://x"}, "output"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    job = Job(tmp_path, **changes)
    assert job.here() == exits.BAD_INPUT
    assert says in capsys.readouterr().err


def test_the_base_on_disk_is_untouched_and_validation_gates(
    whole: Job, validation: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`evaluate` on the base model itself: nothing was trained into it."""
    from tunewright_workloads.evaluate import main
    from tunewright_workloads.gemma import tiny

    fresh = tmp_path / "fresh"
    tiny.write(fresh)
    base = whole.directory / "work" / "samples" / "gemma-4-tiny"
    assert digest(base) == digest(fresh)
    config = {
        "job": "test/tiny", "model": f"file://{base}", "mesh": {"accelerator": "cpu"}, "computeDtype": "float32",
        "dataset": {"train": [validation], "validation": [validation], "maxLength": 48}, "batchSize": 2,
        "work": str(tmp_path / "work"), "progress": str(tmp_path / "progress.json"),
    }  # fmt: skip
    results = []
    for limit, code in ((None, exits.DONE), (1.0, exits.BAD_INPUT), (50.0, exits.DONE)):
        file = tmp_path / "evaluate.json"
        file.write_text(json.dumps({**config, "maxEvalLoss": limit}))
        assert main(["--config", str(file)]) == code
        out, err = capsys.readouterr()
        results.append(json.loads(out.splitlines()[-1])["evalLoss"])
        assert ("validation loss must be at most 1.0" in err) == (code == exits.BAD_INPUT)
    assert len(set(results)) == 1 and results[0] > 5
    assert json.loads((tmp_path / "progress.json").read_text())["evalLoss"] == results[0]
    file.write_text(json.dumps({**config, "dataset": {**config["dataset"], "validation": []}}))  # type: ignore[dict-item]
    assert main(["--config", str(file)]) == exits.BAD_INPUT
    assert "dataset.validation" in capsys.readouterr().err
