"""`tunewright run` on the quickstart: real training, merging and serving as processes on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tunewright_workloads import samples
from tunewright_workloads.contract import progress
from tunewright_workloads.contract.lineage import Manifest

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples/quickstart.yaml"
PROGRAM = "import sys; from tunewright_operator.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the command line in a process; compiled programs are shared by all of them."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/operator:{ROOT}/workloads",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("jax")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    begun: list[subprocess.Popen] = []

    def begin(state: Path, *options: str, file: Path = QUICKSTART) -> subprocess.Popen:
        state.parent.mkdir(parents=True, exist_ok=True)
        log = (state.parent / f"{state.name}.err").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "run", "-f", str(file), "--state", str(state), *options],
            env=env, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield begin
    for process in begun:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def said(state: Path) -> str:
    return state.with_name(f"{state.name}.err").read_text()


def finish(process: subprocess.Popen, state: Path) -> str:
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said(state)
    return out


def quickstart() -> dict:
    """The FineTuneJob of the quickstart as it is written."""
    documents = yaml.safe_load_all(QUICKSTART.read_text())
    return next(d for d in documents if d["kind"] == "FineTuneJob")


def faq() -> dict[str, str]:
    rows = [json.loads(line)["messages"] for line in samples.path("faq").read_text().splitlines()]
    return {user["content"]: assistant["content"] for user, assistant in rows}


QUESTION = "What happens to rows that are too long?"
MERGED = "claims/quickstart/faq-bot/merged"


@pytest.fixture(scope="module")
def done(start, tmp_path_factory):
    """An uninterrupted run, with the answers before and after: (state, stdout)."""
    state = tmp_path_factory.mktemp("run") / "state"
    answers = state.parent / "answers.json"
    out = finish(start(state, "--ask", QUESTION, "--compare-base", "--answers", str(answers)), state)
    return state, out


def test_the_fine_tuned_model_gives_the_datasets_answer_and_the_base_does_not(done):
    state, out = done
    answers = json.loads((state.parent / "answers.json").read_text())
    assert answers["after"] == faq()[QUESTION]
    assert answers["before"] != answers["after"]
    assert out.splitlines()[-1] == f"Fine-tuned model: {faq()[QUESTION]}"
    assert "gate: passed" in said(state)


def test_every_stage_left_its_log_and_the_model_its_manifest(done):
    state, _ = done
    logs = {p.name for p in (state / "default/faq-bot/logs").iterdir()}
    assert logs == {"train.log", "merge.log", "serve.log", "gate.log"}
    manifest = Manifest.model_validate_json((state / MERGED / "tunewright.json").read_bytes())
    assert manifest.adapter.step == quickstart()["spec"]["training"]["steps"]


def test_a_second_run_trains_nothing_and_the_endpoint_speaks_openai(done, start):
    """curl, the openai client and --ask get the same answers, which are the dataset's."""
    import openai

    state, _ = done
    process = start(state)
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/v1", process.stdout.readline())
        assert url, said(state)
        lines = [process.stdout.readline() for _ in range(2)]
        words = shlex.split(lines[1])
        assert words[0] == "curl"
        body = json.loads(words[words.index("-d") + 1])
        client = openai.OpenAI(base_url=url.group(), api_key="none", max_retries=0)
        for question, answer in list(faq().items())[:5]:
            body["messages"] = [{"role": "user", "content": question}]
            request = urllib.request.Request(
                words[2], json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                by_curl = json.load(response)["choices"][0]["message"]["content"]
            by_client = client.chat.completions.create(
                model="faq-bot", messages=body["messages"], temperature=0, max_tokens=128
            )
            assert by_curl == by_client.choices[0].message.content == answer
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert "train: already done" in said(state)
    assert "merge: already done" in said(state)


def wait_for_step(state: Path, step: int) -> None:
    file = state / "default/faq-bot/train/volumes/work/progress.json"
    end = time.monotonic() + 300
    while True:
        record = progress.read(file)
        if record is not None and record.step >= step:
            return
        assert time.monotonic() < end, said(state)
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_run_that_is_ended_in_the_middle_goes_on_and_publishes_the_same_bytes(done, start, tmp_path, how):
    whole, _ = done
    state, file = tmp_path / "state", tmp_path / "often.yaml"
    job = quickstart()
    job["spec"]["checkpoint"] = {"everySteps": 5}  # how often it is saved changes nothing of what is saved
    file.write_text(yaml.safe_dump(job))
    first = start(state, "--no-serve", file=file)
    wait_for_step(state, 6)
    if how == "killed":
        first.kill()
        first.wait(60)
    else:
        first.send_signal(signal.SIGINT)
        assert first.wait(150) == 75, said(state)
        assert "its checkpoint is saved" in said(state)
    finish(start(state, "--no-serve", file=file), state)
    assert "(attempt 2)" in said(state)
    if how == "killed":
        assert "left by a run that was killed" in said(state)
    one, other = (
        Manifest.model_validate_json((s / MERGED / "tunewright.json").read_bytes()) for s in (whole, state)
    )
    weights = [n for n in one.files if n.endswith(".safetensors")]
    assert weights
    assert {n: one.files[n] for n in weights} == {n: other.files[n] for n in weights}
    assert one.adapter.digest == other.adapter.digest
