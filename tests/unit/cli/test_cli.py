"""The command line: quick, helpful, and with the exit codes of the contract."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support import specs
from tunewright_operator.cli import COMMANDS, cli, main

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples/quickstart.yaml"


def write(tmp_path: Path, *resources: dict) -> Path:
    path = tmp_path / "it.yaml"
    path.write_text("---\n".join(yaml.safe_dump(r) for r in resources))
    return path


TINY = specs.merged(specs.JOB, specs.TINY)
SERVED = specs.merged(
    specs.ENDPOINT,
    {"spec.model": {"fineTuneJobRef": {"name": "support-bot"}}, "spec.accelerator": {"type": "cpu"}},
)


# -- help and errors ------------------------------------------------------------------------


def test_every_command_has_a_line_of_help_and_can_be_imported():
    import click

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.name == name


def test_help_imports_no_command():
    script = (
        "import sys; from tunewright_operator.cli import main; main(['--help']); print(' '.join(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/workloads"}
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    ).stdout
    loaded = set(out.splitlines()[-1].split())
    assert not {"pydantic", "yaml", "rich", "tunewright_operator.api", "tunewright_operator.plan"} & loaded


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["plna"]) == 2
    assert "no command 'plna'. Did you mean plan?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "-f", "missing.yaml"],
        ["run", "-f", "x", "--port", "0"],
        ["plan", "-f", str(QUICKSTART), "-o", "xml"],
    ],
)
def test_bad_usage_ends_with_two_and_no_traceback(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.strip()


def test_faults_of_every_document_are_told_at_once(tmp_path, capsys):
    bad = specs.merged(TINY, {"spec.training.stepz": 5})
    worse = specs.merged(SERVED, {"spec.replicas": -1})
    assert main(["plan", "-f", str(write(tmp_path, bad, worse))]) == 2
    err = capsys.readouterr().err
    assert "FineTuneJob/support-bot: spec.training.stepz" in err
    assert "ServeEndpoint/support-bot: spec.replicas" in err


def test_faults_of_every_plan_are_told_at_once(tmp_path, capsys):
    a = specs.merged(TINY, {"spec.dataset.train": ["file:///etc/tunewright/a"], "metadata.name": "a"})
    b = specs.merged(TINY, {"spec.dataset.train": ["file:///var/tunewright/b"], "metadata.name": "b"})
    assert main(["plan", "-f", str(write(tmp_path, a, b))]) == 2
    err = capsys.readouterr().err
    assert "FineTuneJob/a: spec.dataset.train[0]" in err
    assert "FineTuneJob/b: spec.dataset.train[0]" in err


# -- plan -----------------------------------------------------------------------------------


def test_plan_prints_what_kubectl_can_apply(capsys):
    assert main(["plan", "-f", str(QUICKSTART), "--no-data"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {"Job", "Deployment", "Service", "ConfigMap", "Role"} <= {o["kind"] for o in objects}
    assert all(o["apiVersion"] and o["metadata"]["namespace"] == "default" for o in objects)


def test_configurations_are_printed_as_text_of_several_lines(capsys):
    main(["plan", "-f", str(QUICKSTART), "--no-data"])
    assert "train.json: |" in capsys.readouterr().out


def test_plan_as_json_is_one_list(capsys):
    assert main(["plan", "-f", str(QUICKSTART), "--no-data", "-o", "json", "-n", "team"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["kind"] == "List"
    assert {o["metadata"]["namespace"] for o in listed["items"]} == {"team"}


def test_a_file_comes_from_standard_input(monkeypatch, capsys):
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(QUICKSTART.read_bytes())))
    assert main(["plan", "-f", "-", "--no-data"]) == 0
    assert "faq-bot-train" in capsys.readouterr().out


def test_a_namespace_in_the_file_stands_above_the_option(tmp_path, capsys):
    assert main(["plan", "-f", str(write(tmp_path, TINY)), "--no-data", "-n", "other", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert {o["metadata"]["namespace"] for o in items} == {"team"}


def test_options_of_plan_reach_the_plan(tmp_path, capsys):
    big = specs.merged(specs.JOB, {"spec.accelerator.topology": "2x2x4"})
    assert (
        main(["plan", "-f", str(write(tmp_path, big)), "--no-jobset", "--registry", "mine/", "-o", "json"])
        == 0
    )
    text = capsys.readouterr().out
    assert '"JobSet"' not in text
    assert '"mine/tunewright/train:' in text


def test_a_file_output_is_planned_for_this_machine_only(tmp_path, capsys):
    path = write(tmp_path, specs.merged(TINY, {"spec.output.uri": "file://./out"}))
    assert main(["plan", "-f", str(path), "--no-data"]) == 2
    assert "spec.output.uri: needs an absolute path" in capsys.readouterr().err
    absolute = write(tmp_path, specs.merged(TINY, {"spec.output.uri": f"file://{tmp_path}/out"}))
    assert main(["plan", "-f", str(absolute), "--no-data"]) == 2
    assert "lost with the pod" in capsys.readouterr().err
    path = write(tmp_path, specs.merged(TINY, {"spec.output.uri": "file://./out"}))
    assert main(["plan", "-f", str(path), "--no-data", "--local"]) == 0
    assert f"file://{tmp_path}/out" in capsys.readouterr().out


def test_a_dataset_that_is_not_here_is_said_not_to_be_checked(tmp_path, capsys):
    assert main(["plan", "-f", str(write(tmp_path, specs.JOB))]) == 0
    err = capsys.readouterr().err
    assert (
        "dataset not checked: gs://acme/sft/train.jsonl, hf://google/gemma-4-31B-it (for its tokenizer)"
        in err
    )


def test_what_is_not_here_is_named_as_the_file_wrote_it(tmp_path, capsys):
    path = write(tmp_path, specs.merged(TINY, {"spec.dataset.train": ["pvc://rows/a.jsonl"]}))
    assert main(["plan", "-f", str(path)]) == 0
    assert "dataset not checked: pvc://rows/a.jsonl cannot" in capsys.readouterr().err


def rows(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"file://{path}"


GOOD = json.dumps(
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
)


def test_a_dataset_that_is_here_is_read(tmp_path, capsys):
    data = rows(tmp_path, *[GOOD.replace("hi", f"hi {i}") for i in range(9)])
    path = write(
        tmp_path, specs.merged(TINY, {"spec.dataset.train": [data], "spec.training": {"globalBatchSize": 1}})
    )
    assert main(["plan", "-f", str(path)]) == 0
    assert "dataset: 9 rows" in capsys.readouterr().err


def test_a_bad_dataset_is_refused_with_file_and_line_before_anything_is_printed(tmp_path, capsys):
    data = rows(tmp_path, GOOD, '{"messages": [{"role": "human", "content": "hi"}]}')
    path = write(tmp_path, specs.merged(TINY, {"spec.dataset.train": [data]}))
    assert main(["plan", "-f", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rows.jsonl:2" in captured.err
    assert "Traceback" not in captured.err


def test_the_dataset_check_reads_what_training_would_read(tmp_path):
    from tunewright_operator import plan
    from tunewright_operator.cli.datasets import arguments

    job = specs.job(
        {
            **specs.TINY,
            "spec.model.source": "file:///models/base",
            "spec.dataset": {
                "train": ["file:///a", "file:///b"], "validation": ["file:///v"], "format": "messages", "maxLength": 99,
                "overlong": "fail", "packing": False, "lossOn": "all",
            },
            "spec.training": {"steps": 7, "globalBatchSize": 3, "seed": 5},
        }
    )  # fmt: skip
    config = plan.job(job).stage("train").config
    assert arguments(config, tmp_path) == [
        "file:///a", "file:///b", "--json", "--work", str(tmp_path), "--tokenizer", "/models/base",
        "--format", "messages", "--max-length", "99", "--overlong", "fail", "--loss-on", "all",
        "--batch", "3", "--seed", "5", "--steps", "7", "--no-packing", "--validation", "file:///v",
    ]  # fmt: skip


# -- preflight ------------------------------------------------------------------------------


def test_preflight_tells_what_a_device_must_hold(tmp_path, capsys):
    assert main(["preflight", "-f", str(write(tmp_path, specs.JOB))]) == 0
    assert "memory: at least" in capsys.readouterr().out


def test_preflight_refuses_what_cannot_fit(tmp_path, capsys):
    big = specs.merged(specs.JOB, {"spec.accelerator": {"type": "v6e", "topology": "1x1"}})
    assert main(["preflight", "-f", str(write(tmp_path, big))]) == 2
    assert "does not hold a training step of gemma-4-31b on v6e 1x1" in capsys.readouterr().err


# -- run: what is refused before anything starts --------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--compare-base"], "--compare-base: needs --ask"),
        (["--answers", "a.json"], "--answers: needs --ask"),
        (["--ask", " "], "--ask: needs a question"),
        (["--ask", "q", "--no-serve"], "--no-serve: leaves nobody"),
        (["--endpoint", "other"], "--endpoint: must name a ServeEndpoint of the file: support-bot"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, capsys, options, said):
    path = write(tmp_path, TINY, SERVED)
    assert main(["run", "-f", str(path), "--state", str(tmp_path / "state"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists(), "nothing was begun"


def test_ask_needs_an_endpoint(tmp_path, capsys):
    assert main(["run", "-f", str(write(tmp_path, TINY)), "--state", str(tmp_path / "s"), "--ask", "q"]) == 2
    assert "--ask: needs a ServeEndpoint in the file" in capsys.readouterr().err


def test_several_endpoints_need_a_choice(tmp_path, capsys):
    other = specs.merged(SERVED, {"metadata.name": "second"})
    path = write(tmp_path, TINY, SERVED, other)
    assert main(["run", "-f", str(path), "--state", str(tmp_path / "s"), "--ask", "q"]) == 2
    assert "there are several: support-bot, second. Add --endpoint." in capsys.readouterr().err


def test_a_slice_cannot_be_run_here(tmp_path, capsys):
    assert main(["run", "-f", str(write(tmp_path, specs.JOB)), "--state", str(tmp_path / "s")]) == 2
    assert 'must be cpu to run on this machine (got "v5p")' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ask", "q", "--answers", "/dev/null/a.json"], "--answers: cannot be written: "),
        (["--host", "203.0.113.7"], "--host: cannot be served on: "),
        (["--host", "no such host"], "--host: cannot be served on: "),
    ],
)
def test_what_could_not_be_written_or_served_is_refused_before_training(tmp_path, capsys, options, said):
    path = write(tmp_path, TINY, SERVED)
    assert main(["run", "-f", str(path), "--state", str(tmp_path / "state"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists(), "nothing was begun"


def test_a_port_that_is_taken_is_refused_before_training(tmp_path, capsys):
    path = write(tmp_path, TINY, SERVED)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["run", "-f", str(path), "--state", str(tmp_path / "state"), "--port", str(port)]) == 2
    assert f"--port: cannot be served on: Address already in use (got {port})" in capsys.readouterr().err
    assert not (tmp_path / "state").exists(), "nothing was begun"


@pytest.mark.parametrize("place", ["/dev/null/state", "/proc/state"])
def test_a_state_folder_that_cannot_be_made_is_no_traceback(tmp_path, capsys, place):
    assert main(["run", "-f", str(write(tmp_path, TINY)), "--state", place]) == 2
    assert "--state: cannot be written: " in capsys.readouterr().err


def test_a_disk_that_is_full_is_told_in_a_line(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tunewright_operator.cli.run._own_ignore", full)
    assert main(["run", "-f", str(write(tmp_path, TINY)), "--state", str(tmp_path / "s")]) == 1
    said = capsys.readouterr().err.strip()
    assert said == "No space left on device. Free some space, or choose another place."


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stages": []}', '{"stages": {"train": {}}}'])
def test_a_damaged_record_of_a_run_is_named_and_fresh_starts_over(tmp_path, capsys, fakes, text):
    path, state = write(tmp_path, TINY, SERVED), tmp_path / "state"
    command = ["run", "-f", str(path), "--state", str(state), "--no-serve"]
    record = state / "team" / "support-bot" / "job.json"
    record.parent.mkdir(parents=True)
    record.write_text(text)
    assert main(command) == 2
    assert f"{record}: is damaged" in capsys.readouterr().err
    assert main([*command, "--fresh"]) == 0


def test_an_endpoint_whose_job_was_never_run_here(tmp_path, capsys):
    assert main(["run", "-f", str(write(tmp_path, SERVED)), "--state", str(tmp_path / "s")]) == 2
    assert "names a FineTuneJob that is not known here" in capsys.readouterr().err


# -- run: against workloads that are scripts ------------------------------------------------

FAKE = {
    "train": """
        import json, sys, pathlib
        c = json.load(open(sys.argv[2])); out = pathlib.Path(c["output"].removeprefix("file://"))
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
        print("trained")
    """,
    "merge": """
        import json, sys, pathlib
        c = json.load(open(sys.argv[2])); out = pathlib.Path(c["output"].removeprefix("file://"))
        out.mkdir(parents=True, exist_ok=True); (out / "tunewright.json").write_text("{}")
    """,
    "serve/__main__": """
        import http.server, json, sys
        c = json.load(open(sys.argv[2]))
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers()
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                word = "tuned" if c["model"].endswith("/merged") else "base"
                raw = json.dumps({"choices": [{"message": {"content": word}}]}).encode()
                self.send_response(200); self.send_header("Content-Length", str(len(raw))); self.end_headers()
                self.wfile.write(raw)
            def log_message(self, *a): pass
        http.server.HTTPServer((c["host"], c["port"]), Handler).serve_forever()
    """,
    "serve/gate": "import sys, urllib.request; urllib.request.urlopen(sys.argv[sys.argv.index('--url') + 1])",
}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Puts a package of scripts in the workloads' place, for processes that the command line starts."""
    import textwrap

    package = tmp_path / "fake/tunewright_workloads"
    for name, code in FAKE.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        (path.parent / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    return package


def test_a_whole_run_with_answers_before_and_after(tmp_path, capsys, fakes):
    path, state = write(tmp_path, TINY, SERVED), tmp_path / "state"
    answers = tmp_path / "answers.json"
    options = ["--ask", "q", "--compare-base", "--answers", str(answers)]
    assert main(["run", "-f", str(path), "--state", str(state), *options]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["Question: q", "Base model: base", "Fine-tuned model: tuned"]
    assert json.loads(answers.read_text()) == {"question": "q", "before": "base", "after": "tuned"}
    assert f"the model is at {state}/claims/data/out/merged" in captured.err
    assert "gate: passed" in captured.err
    assert (state / ".gitignore").read_text() == "*\n"

    assert main(["run", "-f", str(path), "--state", str(state), "--ask", "q"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "tuned\n", "alone on stdout, for scripts"
    assert "train: already done" in captured.err


def test_the_engine_of_the_command_line_stands_above_the_files(tmp_path, capsys, fakes):
    (fakes / "serve/__main__.py").write_text(
        "import json, sys; print('engine', json.load(open(sys.argv[2]))['engine']); sys.exit(2)"
    )
    path = write(tmp_path, TINY, SERVED)
    assert main(["run", "-f", str(path), "--state", str(tmp_path / "s"), "--engine", "vllm"]) == 2
    assert "engine vllm" in capsys.readouterr().err


def test_an_engine_that_does_not_go_with_the_file_is_refused(tmp_path, capsys):
    served = specs.merged(SERVED, {"spec.engine": {"name": "vllm", "extraArgs": ["--seed=1"]}})
    path = write(tmp_path, TINY, served)
    assert main(["run", "-f", str(path), "--state", str(tmp_path / "s"), "--engine", "jax"]) == 2
    assert "ServeEndpoint/support-bot: spec.engine.extraArgs" in capsys.readouterr().err


def test_an_endpoint_alone_serves_what_an_earlier_run_made(tmp_path, capsys, fakes):
    state = tmp_path / "state"
    assert main(["run", "-f", str(write(tmp_path, TINY)), "--state", str(state)]) == 0
    assert main(["run", "-f", str(write(tmp_path, SERVED)), "--state", str(state), "--ask", "q"]) == 0
    assert capsys.readouterr().out == "tuned\n"


def test_the_exit_code_of_bad_input_is_the_workloads(tmp_path, capsys, fakes):
    (fakes / "train.py").write_text("import sys; sys.exit('no' and 2)")
    assert main(["run", "-f", str(write(tmp_path, TINY)), "--state", str(tmp_path / "s")]) == 2
    assert "train refused its input" in capsys.readouterr().err


def test_a_gate_that_fails_stands_before_the_answer(tmp_path, capsys, fakes):
    (fakes / "serve/gate.py").write_text("import sys; print('token 3 differs'); sys.exit(2)")
    assert (
        main(["run", "-f", str(write(tmp_path, TINY, SERVED)), "--state", str(tmp_path / "s"), "--ask", "q"])
        == 2
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "does not answer as the model it should be:\ntoken 3 differs" in captured.err


def test_an_endpoint_stays_up_until_a_signal(tmp_path, fakes):
    import signal
    import time

    (fakes / "bench.py").write_text(
        "import json, sys; print('measured', json.load(open(sys.argv[2]))['url'])"
    )
    path = write(tmp_path, TINY, specs.merged(SERVED, {"spec.benchmark": {}}))
    code = "import sys; from tunewright_operator.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": f"{fakes.parent}:{ROOT}/operator:{ROOT}/workloads"}
    program = f"import sys; sys.path.remove({str(fakes.parent)!r}); {code}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "run", "-f", str(path), "--state", str(tmp_path / "s")],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        first = process.stdout.readline()
        assert "support-bot is served at http://127.0.0.1:" in first
        log = tmp_path / "s/team/support-bot/logs/bench.log"
        end = time.monotonic() + 60
        while not log.exists() or "measured" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, process.stderr.read()
        out = process.stdout.read()
        assert "curl -s http://127.0.0.1:" in out
        assert "measured http://127.0.0.1:" in out
    finally:
        process.kill()
        process.communicate()


# -- workloads by name ----------------------------------------------------------------------


def test_a_workloads_arguments_and_exit_code_pass_through(fakes, monkeypatch, capfd):
    (fakes / "merge.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    assert main(["merge", "--base", "x", "--help", "--", "-f"]) == 7
    assert capfd.readouterr().out.strip() in (
        "['--base', 'x', '--help', '--', '-f']",
        "['--base', 'x', '--help', '-f']",
    )


def test_crds_are_printed_or_written(tmp_path, capsys):
    assert main(["crds"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {o["spec"]["names"]["kind"] for o in printed} == {"FineTuneJob", "ServeEndpoint"}
    assert main(["crds", "--output", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.yaml"))) == 2


def test_crds_are_checked_against_a_folder(tmp_path, capsys):
    assert main(["crds", "--check", str(tmp_path)]) == 1
    assert "finetunejobs.yaml is stale" in capsys.readouterr().err
    assert main(["crds", "--output", str(tmp_path)]) == 0
    assert main(["crds", "--check", str(tmp_path)]) == 0
    assert main(["crds", "--check", str(tmp_path), "--output", str(tmp_path)]) == 2
