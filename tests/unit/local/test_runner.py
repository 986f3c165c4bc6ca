"""The runner does with processes what a cluster does with pods."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from support import models
from support.plans import Script, plan, script
from tunewright_operator.local import process as processes
from tunewright_operator.local.runner import Runner, StageError, StoppedError
from tunewright_operator.local.signals import Signals
from tunewright_operator.local.view import Lines
from tunewright_workloads.contract.faults import UserError

REPO = Path(__file__).parents[3]


class Notes(Lines):
    """Keeps what would be shown."""

    def __init__(self):
        super().__init__(sys.stderr)
        self.lines: list[str] = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def runner(tmp_path, notes):
    with Signals() as signals:
        yield Runner(tmp_path / "state", notes, signals, pause=0.01)


def trace(state: Path) -> list[str]:
    """What the scripts appended to the claim."""
    path = state / "claims/data/trace"
    return path.read_text().split() if path.exists() else []


SAY = "echo {} >> /mnt/claims/data/trace"


def log(runner, stage, name="it"):
    return runner.folders.log("default", name, stage).read_text()


def test_stages_run_in_order_and_a_second_run_says_that_they_are_done(runner, notes):
    work = plan(script("train", SAY.format("t")), script("merge", SAY.format("m")))
    runner.job(work)
    assert trace(runner.folders.root) == ["t", "m"]
    runner.job(work)
    assert trace(runner.folders.root) == ["t", "m"]
    assert [line.split(" (")[0] for line in notes.lines[-2:]] == [
        "train: already done",
        "merge: already done",
    ]
    assert runner.known_output("default", "it") == "file:///mnt/claims/data/merged"


def test_a_stage_whose_result_is_gone_runs_again_with_all_after_it(runner):
    made = "file:///mnt/claims/data/adapter"
    work = plan(
        script("train", SAY.format("t") + "; touch /mnt/claims/data/adapter", artifact=made),
        script("merge", SAY.format("m")),
    )
    runner.job(work)
    (runner.folders.claims / "data/adapter").unlink()
    runner.job(work)
    assert trace(runner.folders.root) == ["t", "m", "t", "m"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda model: (model / "w.safetensors").write_text("changed?"), "does not describe w.safetensors"),
        (lambda model: (model / "w.safetensors").write_text("longer than it was"), "does not describe w.saf"),
        (lambda model: (model / "w.safetensors").unlink(), "names w.safetensors, which is gone"),
        (lambda model: (model / "tunewright.json").write_text("{"), "cannot be read"),
    ],
)
def test_a_merged_model_that_is_not_what_its_manifest_says_is_merged_again(runner, notes, damage, said):
    model = runner.folders.claims / "data/merged"
    text = models.manifest({"w.safetensors": b"weights!"})
    code = "mkdir -p /mnt/claims/data/merged && cd /mnt/claims/data/merged && printf weights! >w.safetensors"
    code += f" && printf %s {shlex.quote(text)} >tunewright.json; {SAY.format('m')}"
    work = plan(script("merge", code, artifact="file:///mnt/claims/data/merged/tunewright.json"))
    runner.job(work)
    runner.job(work)
    assert trace(runner.folders.root) == ["m"]
    damage(model)
    runner.job(work)
    assert trace(runner.folders.root) == ["m", "m"]
    assert any(said in line and "running it again" in line for line in notes.lines)
    assert (model / "w.safetensors").read_text() == "weights!"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_the_run_at_once_and_says_what_to_do(runner, number):
    say = shlex.quote(f"OSError: [Errno {number}] {os.strerror(number)}: 'x'")
    work = plan(script("train", f"{SAY.format('t')}; echo {say} >&2; exit 1", retries=3))
    with pytest.raises(StageError, match=r"disk is full.*Free some space") as caught:
        runner.job(work)
    assert caught.value.code == 1
    assert trace(runner.folders.root) == ["t"]


@pytest.mark.parametrize(
    ("stage", "left"), [("merge", "shards that it finished are kept"), ("evaluate", "starts again")]
)
def test_what_is_said_of_a_stopped_stage_is_true_of_it(runner, notes, stage, left):
    later(0.5, signal.SIGINT)
    with pytest.raises(StoppedError, match=left) as caught:
        runner.job(plan(script(stage, "while :; do sleep 0.05; done")))
    assert not any("checkpoint" in line for line in [*notes.lines, str(caught.value)])
    assert any(f"{stage}: stopping, up to 5 s to end" in line for line in notes.lines)


def test_bad_input_is_never_retried_and_its_message_is_shown(runner):
    work = plan(
        script("train", SAY.format("t") + "; echo 'spec.x: is wrong' >&2; exit 2"), script("merge", "true")
    )
    with pytest.raises(
        StageError, match=r"(?s)refused its input:\nspec.x: is wrong\nLog: .*train.log"
    ) as caught:
        runner.job(work)
    assert caught.value.code == 2
    assert trace(runner.folders.root) == ["t"]


def test_other_failures_are_retried_up_to_the_backoff_limit(runner):
    work = plan(script("train", SAY.format("t") + "; echo boom; exit 7", retries=2))
    with pytest.raises(StageError, match=r"(?s)exit code 7 after 3 attempts .*boom") as caught:
        runner.job(work)
    assert caught.value.code == 7
    assert trace(runner.folders.root) == ["t"] * 3
    assert [line for line in log(runner, "train").splitlines() if line.startswith("--- attempt")][
        2
    ].startswith("--- attempt 3 at ")


def test_preemption_does_not_count_as_a_failure(runner):
    code = """
    n=$(cat /mnt/claims/data/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /mnt/claims/data/n
    [ $n -ge 5 ] || exit 75
    """
    runner.job(plan(script("train", code, retries=0)))
    assert (runner.folders.claims / "data/n").read_text().strip() == "5"


def test_being_killed_counts_and_is_named(runner):
    with pytest.raises(StageError, match=r"exit code 137 \(killed, often because .* memory\)") as caught:
        runner.job(plan(script("train", "kill -9 $$", retries=0)))
    assert caught.value.code == 137


def test_the_deadline_ends_the_stage_and_keeps_its_checkpoint(runner):
    code = "trap 'touch /mnt/claims/data/saved; exit 75' TERM; while :; do sleep 0.05; done"
    with pytest.raises(StageError, match=r"limits.runTime allows \(1 s\).*checkpoint is kept"):
        runner.job(plan(script("train", code), deadline=1))
    assert (runner.folders.claims / "data/saved").exists()


def later(seconds, *numbers):
    """Sends signals to this process, `seconds` apart."""

    def send():
        for number in numbers:
            time.sleep(seconds)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_ctrl_c_lets_the_stage_save_and_the_next_run_goes_on(runner, notes):
    code = """
    if [ -e /mnt/claims/data/saved ]; then exit 0; fi
    trap 'touch /mnt/claims/data/saved; exit 75' TERM
    while :; do sleep 0.05; done
    """
    work = plan(script("train", code), script("merge", SAY.format("m")))
    later(0.5, signal.SIGINT)
    with pytest.raises(StoppedError, match=r"checkpoint is saved\. Run the same command") as caught:
        runner.job(work)
    assert caught.value.code == 75
    assert trace(runner.folders.root) == []
    with Signals() as signals:
        Runner(runner.folders.root, notes, signals, pause=0.01).job(work)
    assert trace(runner.folders.root) == ["m"]


def test_a_second_ctrl_c_does_not_wait_for_the_grace_period(runner):
    begun = time.monotonic()
    later(0.4, signal.SIGINT, signal.SIGINT)
    with pytest.raises(StoppedError) as caught:
        runner.job(plan(script("train", "trap '' TERM; while :; do sleep 0.05; done", grace=600)))
    assert caught.value.code == 130
    assert time.monotonic() - begun < 60


def test_processes_that_a_stage_leaves_behind_are_ended(runner):
    runner.job(plan(script("train", "sleep 300 & echo $! > /mnt/claims/data/child")))
    child = int((runner.folders.claims / "data/child").read_text())
    wait_until(lambda: processes.started(child) is None)


def test_a_changed_spec_is_refused_with_the_difference_and_fresh_starts_over(runner):
    before = plan(
        script("train", SAY.format("t"), config=Script(note="a", output="file:///mnt/claims/data/out"))
    )
    after = plan(
        script("train", SAY.format("u"), config=Script(note="b", output="file:///mnt/claims/data/out"))
    )
    runner.job(before)
    out = runner.folders.claims / "data/out"
    out.mkdir()
    with pytest.raises(UserError, match=r'changed since the run began: note: "a" -> "b".*--fresh'):
        runner.job(after)
    runner.job(after, fresh=True)
    assert trace(runner.folders.root) == ["t", "u"]
    assert not out.exists()


def test_a_new_release_does_not_undo_what_is_done(runner):
    """Its configurations have other keys and its pods other variables."""
    runner.job(plan(script("train", SAY.format("t"))))
    path = runner.folders.home("default", "it") / "job.json"
    state = json.loads(path.read_text())
    config = state["stages"]["train"]["config"]
    del config["note"]
    config["gone"] = 1
    path.write_text(json.dumps(state))
    runner.job(plan(script("train", SAY.format("t"), env=[{"name": "NEW", "value": "1"}])))
    assert trace(runner.folders.root) == ["t"]


def test_a_stage_in_the_middle_goes_on_only_with_its_own_command(runner):
    with pytest.raises(StageError):
        runner.job(plan(script("train", "exit 1", retries=0)))
    with pytest.raises(UserError, match="changed since the run began: its command or environment"):
        runner.job(plan(script("train", "exit 0", retries=0)))


@pytest.mark.parametrize("change", ["content", "gone"])
def test_a_dataset_that_changed_is_refused(runner, tmp_path, change):
    from support import specs
    from tunewright_operator.plan.stage import Stage
    from tunewright_workloads.contract.configs import TrainConfig

    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")

    def job():
        made = script("train", SAY.format("t"))
        spec = specs.job(specs.TINY)
        from tunewright_operator import plan as planner

        config = planner.job(spec).stage("train").config
        assert isinstance(config, TrainConfig)
        data = config.dataset.model_copy(update={"train": (f"file://{rows}",)})
        return plan(
            Stage("train", made.manifests, config.model_copy(update={"dataset": data, "progress": None}))
        )

    runner.job(job())
    runner.job(job())
    assert trace(runner.folders.root) == ["t"]
    if change == "content":
        rows.write_text("{}\n{}\n")
        with pytest.raises(UserError, match=r"changed since the run began: the file .*rows\.jsonl"):
            runner.job(job())
    else:
        rows.unlink()
        runner.job(job())  # what is done is done: the file is not needed any more
    assert trace(runner.folders.root) == ["t"]


def test_retries_and_labels_may_change_between_runs(runner):
    runner.job(plan(script("train", SAY.format("t"), retries=1)))
    runner.job(plan(script("train", SAY.format("t"), retries=5)))
    assert trace(runner.folders.root) == ["t"]


def test_fresh_deletes_nothing_outside_of_the_state_directory(runner, tmp_path):
    out = tmp_path / "precious"
    out.mkdir()
    (out / "file").touch()
    work = plan(script("train", SAY.format("t"), config=Script(output=f"file://{out}")))
    runner.job(work)
    with pytest.raises(UserError, match="outside of the state directory"):
        runner.job(work, fresh=True)
    assert (out / "file").exists()
    runner.job(work)
    assert trace(runner.folders.root) == ["t"]


def test_progress_is_shown_from_the_file_that_the_stage_writes(runner, notes):
    line = json.dumps({"stage": "train", "step": 3, "totalSteps": 9, "loss": 0.5, "tokensPerSecond": 12.0})
    runner.job(plan(script("train", f"echo '{line}' > /var/tunewright/progress.json; sleep 0.4")))
    assert "train: 3/9  loss 0.5000  12 tokens/s" in notes.lines


def test_progress_of_an_earlier_attempt_is_not_shown_again(runner, notes):
    line = json.dumps({"stage": "train", "step": 3})
    code = f"[ -e /mnt/claims/data/x ] && exit 0; touch /mnt/claims/data/x; echo '{line}' > /var/tunewright/progress.json; exit 1"
    runner.job(plan(script("train", code)))
    assert notes.lines.count("train: 3") == 1


# -- a runner in a process of its own ---------------------------------------------------------

PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from support.plans import plan, script
from tunewright_operator.local.runner import Runner
from tunewright_operator.local.signals import Signals
from tunewright_operator.local.view import Lines
from tunewright_workloads.contract.faults import UserError
try:
    with Signals() as signals:
        Runner(Path({state!r}), Lines(sys.stderr), signals, pause=0.01).job(plan(script("train", {code!r}, grace=5)))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def start(state: Path, code: str) -> subprocess.Popen:
    paths = [str(REPO / part) for part in ("operator", "workloads", "tests")]
    program = PROGRAM.format(paths=paths, state=str(state), code=textwrap.dedent(code))
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def wait_until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


WORK = """
echo begin >> /mnt/claims/data/trace
[ -e /mnt/claims/data/saved ] && exit 0
trap 'touch /mnt/claims/data/saved; exit 75' TERM
echo $$ > /mnt/claims/data/pid
while :; do sleep 0.05; done
"""


@contextlib.contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_two_runs_of_one_job_at_once_are_refused(tmp_path):
    state = tmp_path / "state"
    with ended(start(state, WORK)) as first:
        wait_until((state / "claims/data/pid").exists)
        second = start(state, WORK)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 2
        assert f"is being run by another process (pid {first.pid})" in err
        assert trace(state) == ["begin"]
        first.send_signal(signal.SIGTERM)
        first.wait(timeout=30)
    assert (state / "claims/data/saved").exists()


def test_a_run_after_the_runner_was_killed_ends_the_orphan_and_resumes(tmp_path):
    state = tmp_path / "state"
    with ended(start(state, WORK)) as first:
        wait_until((state / "claims/data/pid").exists)
        first.kill()
        first.wait(timeout=30)
    pid = int((state / "claims/data/pid").read_text())
    assert processes.started(pid), "the stage goes on when its runner dies"
    second = start(state, WORK)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert f"ended process {pid}, left by a run that was killed" in err
    assert processes.started(pid) is None
    assert (state / "claims/data/saved").exists(), "the orphan had the time to save"
    assert trace(state) == ["begin", "begin"]


def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(tmp_path):
    with ended(subprocess.Popen(["sleep", "60"])) as other:
        pidfile = tmp_path / "pid.json"
        pidfile.write_text(json.dumps({"pid": other.pid, "started": "another boot/1"}))
        assert processes.end_orphan(pidfile, 1) is None
        assert other.poll() is None
        assert not pidfile.exists()


def test_a_command_whose_runner_dies_before_its_pid_is_on_disk_never_starts(tmp_path):
    made = tmp_path / "made"
    child = subprocess.Popen(
        ["/bin/sh", "-c", processes._GATE, "sh", "touch", str(made)], stdin=subprocess.PIPE
    )
    child.stdin.close()
    assert child.wait(timeout=10) != 0
    assert not made.exists()


# -- endpoints --------------------------------------------------------------------------------

SERVER = """
import http.server, json, sys
config = json.load(open(sys.argv[1]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"choices": [{"message": {"content": "you said " + body["messages"][0]["content"]}}]}
        raw = json.dumps(said).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(raw))); self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *args): pass
http.server.HTTPServer((config["host"], config["port"]), Handler).serve_forever()
"""


def server(code=SERVER):
    return plan(script("serve", "", argv=["python3", "-c", code, "/etc/tunewright/serve.json"]))


def test_an_endpoint_answers_while_the_block_runs_and_is_gone_after(runner):
    from tunewright_operator.local.ask import AskError, ask, curl

    with runner.endpoint(server()) as serving:
        assert ask(serving.endpoint, "héllo 'x'") == "you said héllo 'x'"
        words = shlex.split(curl(serving.endpoint, "it's"))
        assert words[0] == "curl"
        request = urllib.request.Request(words[2], words[words.index("-d") + 1].encode())
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "you said it's"
    with pytest.raises(AskError, match="did not answer"):
        ask(serving.endpoint, "still there?")


def test_an_endpoint_that_ends_before_it_is_ready_shows_why(runner):
    with (
        pytest.raises(StageError, match=r"(?s)exit code 2 before it was ready.*no manifest") as caught,
        runner.endpoint(server("import sys; sys.exit((print('no manifest'), 2)[1])")),
    ):
        pass
    assert caught.value.code == 2


def test_an_endpoint_left_by_a_killed_run_is_ended_before_the_next_one(runner, notes):
    """Two servers would hold the model twice."""
    home = runner.folders.home("default", "it")
    with ended(subprocess.Popen(["sleep", "300"], start_new_session=True)) as left:
        record = {"pid": left.pid, "started": processes.started(left.pid)}
        pidfile = runner.folders.pidfile("default", "it", "serve")
        pidfile.parent.mkdir(parents=True)
        pidfile.write_text(json.dumps(record))
        threading.Thread(target=left.wait, daemon=True).start()
        with runner.endpoint(server()):
            assert left.poll() is not None
    assert any("left by a run that was killed" in line for line in notes.lines)
    assert home.exists()


def test_an_endpoint_that_dies_while_it_serves_is_a_failure(runner):
    with runner.endpoint(server()) as serving:
        os.kill(serving.process.pid, signal.SIGKILL)
        with pytest.raises(StageError, match="exit code 137"):
            serving.wait()


def test_ctrl_c_ends_the_wait_of_an_endpoint(runner):
    with runner.endpoint(server()) as serving:
        later(0.2, signal.SIGINT)
        serving.wait()
    assert serving.process.poll() is not None
