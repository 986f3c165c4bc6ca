from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from support import reports
from tunewright_workloads.compare import compiled, honesty, table
from tunewright_workloads.compare.__main__ import REFUSED, command
from tunewright_workloads.contract.accelerators import ACCELERATORS
from tunewright_workloads.contract.faults import UserError

A, B = reports.run("v5p", 4, 12024), reports.run("h100", 2, 19404, program="torch")
SERVED_A, SERVED_B = reports.bench("v6e", 8), reports.bench("h100", 2, ttft=80)


def test_an_honest_pair_passes_without_a_refusal():
    result = table.compare(A, B, SERVED_A, SERVED_B)
    assert not result.findings
    rows = {r.measure: r for r in result.rows}
    assert rows["training, wall clock s"].ratio == pytest.approx(19404 / 12024)
    assert rows["training $"].ratio == pytest.approx(119.23 / 56.11, rel=1e-3)
    assert rows["TTFT p50 at 1/s, ms"].ratio == pytest.approx(80 / 50)


@pytest.mark.parametrize(
    ("field", "value", "severity", "what", "why"),
    [
        ("training.steps", 25, "refuse", "steps", "different numbers of steps"),
        ("data.digest", "0" * 64, "refuse", "dataset", "files trained on"),
        ("data.templateDigest", "0" * 64, "refuse", "chat template", "other tokens"),
        ("data.tokensUseful", 9_400_000, "refuse", "useful tokens", "more text"),
        ("data.tokenDigest", "0" * 64, "refuse", "token order", "not the same ones in the same order"),
        ("data.tokensTrained", 6_000_000, "refuse", "trained tokens", "other amounts of text"),
        ("data.maskDigest", "0" * 64, "refuse", "loss mask", "on other tokens"),
        ("model.digest", "0" * 64, "refuse", "base model", "frozen weights"),
        (
            "adapter.modules",
            ["layers.0.self_attn.q_proj"],
            "refuse",
            "adapter coverage",
            "Adapted in one run only",
        ),
        ("adapter.rank", 32, "refuse", "adapter rank", "Other adapter size"),
        ("training.globalBatchSize", 16, "refuse", "global batch", "different batches"),
        ("precision.base", "int8", "refuse", "quantized base", "other precision"),
        ("precision.compute", "float32", "refuse", "compute precision", "another peak rate"),
        ("training.learningRate", 2e-4, "flag", "learning rate", "another result"),
        ("adapter.dropout", 0.05, "flag", "dropout", "another result"),
        ("data.packing", False, "flag", "packing", "padding"),
        ("time.cache", "warm", "flag", "compile cache", "compilation"),
        ("hardware.mode", "spot", "flag", "price of the second run", "not what it cost"),
        ("loss", [{"step": 10, "loss": 1.0, "tokens": 5}], "flag", "loss curve of the second run", "thinned"),
        ("precision.adapter", "bfloat16", "flag", "adapter precision", "rounded away"),
    ],
)
def test_two_runs_that_differ_are_caught_with_the_reason(field, value, severity, what, why):
    findings = honesty.runs(A, reports.changed(B, field, value))
    if field == "training.steps":  # a curve of 20 points is rightly flagged beside 25 steps
        assert findings.pop().what == "loss curve of the second run"
    assert [(f.severity, f.what) for f in findings] == [(severity, what)]
    assert why in findings[0].why


@pytest.mark.parametrize(
    ("field", "value", "severity", "what"),
    [
        ("inputTokens", 1024, "refuse", "input length"),
        ("outputTokens", 512, "refuse", "output length"),
        ("modelDigest", "0" * 64, "refuse", "served model"),
        ("modelDigest", None, "flag", "served model"),
        ("uniquePrompts", False, "refuse", "prompts of the second bench"),
        ("points.0.underFloor", 3, "refuse", "TTFT, second bench at 1/s"),
        ("points.0.requests", 30, "refuse", "p99, second bench at 1/s"),
        ("points.0.errors", 7, "flag", "errors, second bench at 1/s"),
        ("kvCacheDtype", "bfloat16", "flag", "KV cache"),
    ],
)
def test_two_benches_that_differ_are_caught(field, value, severity, what):
    findings = honesty.benches(SERVED_A, reports.changed(SERVED_B, field, value))
    assert [(f.severity, f.what) for f in findings] == [(severity, what)]


def test_dollars_of_other_purchase_models_are_flagged():
    spot = reports.changed(B, "hardware.mode", "spot")
    findings = honesty.runs(A, reports.changed(spot, "hardware.price.model", "spot"))
    assert [(f.severity, f.what, f.a, f.b) for f in findings] == [("flag", "price model", "onDemand", "spot")]


def test_a_refused_comparison_prints_no_ratio():
    result = table.compare(A, reports.changed(B, "training.steps", 25))
    assert result.refused
    assert all(row.ratio is None for row in result.rows)
    assert "No ratio is given" in result.markdown()


def test_what_has_no_price_costs_no_zero_dollars():
    cpu = reports.run("cpu", 0, 100), reports.run("cpu", 0, 120, program="torch")
    result = table.compare(*cpu)
    assert not [row for row in result.rows if "$" in row.measure]
    assert result.names == ("jax on cpu", "torch on cpu")
    assert table.compare(cpu[0], cpu[0]).names == ("A: jax on cpu", "B: jax on cpu")
    assert "bench.json" in result.markdown()


def test_every_dollar_names_its_price():
    row = next(r for r in table.compare(A, B).rows if r.measure == "price")
    assert "$4.20 per v5p chip-hour, onDemand (2026-05-25" in row.a


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name, run, bench in (("a", A, SERVED_A), ("b", B, SERVED_B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(run.model_dump_json(by_alias=True))
        (tmp_path / name / "bench.json").write_text(bench.model_dump_json(by_alias=True))
    return tmp_path / "a", tmp_path / "b"


def test_the_command_prints_json_and_draws(folders, tmp_path):
    plots = tmp_path / "plots"
    result = CliRunner().invoke(
        command, [str(folders[0]), str(folders[1]), "--output", "json", "--plots", str(plots)]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["honest"] is True
    assert sorted(p.name for p in plots.iterdir()) == ["cost.png", "loss.png", "ttft.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in plots.iterdir())


def test_the_command_ends_apart_when_it_refuses(folders):
    path = folders[1] / "report.json"
    path.write_text(reports.changed(B, "adapter.rank", 8).model_dump_json(by_alias=True))
    result = CliRunner().invoke(command, [str(folders[0]), str(folders[1])])
    assert result.exit_code == REFUSED
    assert "REFUSE: adapter rank: 64 against 8" in result.output

    result = CliRunner().invoke(command, [*map(str, folders), "--plots", "/dev/null/pictures"])
    assert isinstance(result.exception, UserError)
    assert "--plots: cannot be written" in str(result.exception)


def test_other_prices_change_the_dollars(folders, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text('{"v5p": {"usd": 8.40, "date": "2026-11-01", "source": "our contract"}}')
    result = CliRunner().invoke(
        command, [*map(str, folders), "--prices", str(prices), "--output", "markdown"]
    )
    assert "| training $ | 112.22 | 119.23 |" in result.output
    assert "our contract" in result.output
    assert "price date" in result.output


def test_a_price_by_model_is_taken_for_the_runs_that_were_bought_so(folders, tmp_path):
    path = folders[1] / "report.json"
    path.write_text(reports.changed(B, "hardware.mode", "spot").model_dump_json(by_alias=True))
    prices = tmp_path / "prices.json"
    one = {"usd": 5.53, "date": "2026-11-01", "source": "bill"}
    prices.write_text(json.dumps({"h100": {"spot": one, "committed3y": {**one, "usd": 2.0}}}))
    arguments = [*map(str, folders), "--prices", str(prices), "--output", "markdown"]
    result = CliRunner().invoke(command, arguments)
    assert "$5.53 per h100 chip-hour, spot (2026-11-01, bill)" in result.output
    assert "| training $ | 56.11 | 59.61 |" in result.output

    result = CliRunner().invoke(command, [*arguments, "--price-model", "committed3y"])
    assert isinstance(result.exception, UserError)
    assert "no committed3y price of v5p in the catalog" in result.exception.text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"h100": {"spot": {"usd": "much", "date": "d", "source": "s"}}}', "h100.spot.usd"),
        ('{"h100": {"spot": 3}}', "h100.spot.usd: is required"),
        ('{"h100": 3}', "h100: must be {usd, date, source}"),
        ('{"v5q": {}}', "Did you mean v5p"),
        ('{"v5p": {"usd": -1, "date": "d", "source": "s"}}', "v5p.usd"),
        ("[]", "must be an object"),
        ("{", "is not JSON"),
    ],
)
def test_a_bad_price_file_is_refused_by_place(folders, tmp_path, text, says):
    prices = tmp_path / "prices.json"
    prices.write_text(text)
    result = CliRunner().invoke(command, [*map(str, folders), "--prices", str(prices)])
    assert isinstance(result.exception, UserError)
    assert says in result.exception.text()


def test_a_folder_without_a_report_is_refused_with_the_way_out(tmp_path, folders):
    result = CliRunner().invoke(command, [str(tmp_path), str(folders[1])])
    assert isinstance(result.exception, UserError)
    assert "holds no report.json. Give the output folder of a finished run." in result.exception.text()


def test_a_report_that_is_none_is_refused_by_field(tmp_path, folders):
    (tmp_path / "x.json").write_text('{"job": 1}')
    result = CliRunner().invoke(command, [str(tmp_path / "x.json"), str(folders[1])])
    assert isinstance(result.exception, UserError)
    assert "x.json: program: is required" in result.exception.text()


def test_the_compiled_programs_stand_beside_the_paper_with_their_caveat(tmp_path):
    result = CliRunner().invoke(command, ["--paper"], terminal_width=200, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "no measurement" in result.output and "ours (v5p 2x2x1)" in result.output

    data = json.loads(CliRunner().invoke(command, ["--paper", "--output", "json"]).output)["compiled"]
    data["programs"]["ours"]["seconds_per_1k"] = data["programs"]["paper"]["seconds_per_1k"] / 5
    data["layers"] = 12
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    result = CliRunner().invoke(command, ["--paper", "--compiled", str(other), "--output", "json"])
    found = json.loads(result.output)["compiled"]
    assert next(r for r in found["rows"] if r["program"].startswith("ours"))["x the recipe"] == "5.0x"
    assert any("12 of the model's 60 layers" in line for line in found["remarks"])

    other.write_text('{"programs": {}}')
    result = CliRunner().invoke(command, ["--paper", "--compiled", str(other)])
    assert isinstance(result.exception, UserError)
    assert "must be what bench/aot.py --json wrote" in result.exception.text()


def test_the_recorded_programs_are_those_of_the_docs():
    docs = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    for name, program in compiled.read().programs.items():
        row = next(line for line in docs.splitlines() if line.startswith(f"| {name} | "))
        assert f"**{program.seconds_per_1k:.3f}**" in row, row


@pytest.mark.parametrize(
    ("kind", "mode", "model", "noted"),
    [
        ("v5p", "onDemand", "onDemand", False),
        ("v5p", "spot", "spot", False),
        ("v7x", "spot", "onDemand", True),
        ("v5p", "flexStart", "onDemand", True),
        ("v5p", "reservation", "onDemand", True),
        ("v5p", "computeClass", "onDemand", True),
    ],
)
def test_a_price_that_nobody_has_given_is_not_made_up(kind, mode, model, noted):
    found = ACCELERATORS[kind].quote(mode)
    assert found.price.model == model
    assert (found.note is not None) == noted
    if noted:
        assert f"no {mode} price of {kind} in the catalog" in found.note and "--prices FILE" in found.note


def test_the_paper_is_derived_on_request():
    result = CliRunner().invoke(command, ["--paper", "--output", "json"])
    data = json.loads(result.output)
    assert {c["what"] for c in data["claims"] if not c["holds"]} == {"$/1M tokens, TPU", "$/1M tokens, GPU"}


@pytest.mark.parametrize("content", [b"weights\x00\xff", b"# a text", b""])
def test_a_file_that_is_no_report_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    said = CliRunner().invoke(command, [str(other), str(other)], standalone_mode=False)
    assert isinstance(said.exception, UserError)
    assert str(said.exception).startswith(f"{other}: is not JSON: ")
    assert "b'" not in str(said.exception)
