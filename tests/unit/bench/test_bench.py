"""Load tests measure what a server does, and refuse what they cannot know."""

from __future__ import annotations

import json
import logging
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support.delays import Delays, server
from tunewright_workloads.bench import figures, load, run
from tunewright_workloads.bench.__main__ import main
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.accelerators import ACCELERATORS, slice_of
from tunewright_workloads.contract.benchmark import BenchReport
from tunewright_workloads.contract.configs import BenchConfig
from tunewright_workloads.contract.faults import UserError


def settings(url: str, **changes: Any) -> BenchConfig:
    return BenchConfig(
        **{
            "url": url, "model": "slow", "input_tokens": 32, "output_tokens": 6, "rates": (40.0,), "requests": 40,
            "warmup": 4, "output": "unused", **changes,
        }
    )  # fmt: skip


def test_known_delays_come_back_within_two_percent() -> None:
    # Long delays, and held against what the server really did: this machine may be busy.
    with server(Delays(ttft=0.8, itl=0.3)) as slow:
        (point,) = run.run(settings(slow.url, requests=30, warmup=0)).points
    assert point.ttft.p50 == pytest.approx(statistics.median(slow.firsts) * 1e3, rel=0.02)
    assert point.ttft.p50 >= 800
    assert point.itl is not None
    assert point.itl.p50 == pytest.approx(statistics.median(slow.gaps) * 1e3, rel=0.02)
    assert point.tpot.mean == pytest.approx(statistics.mean(slow.gaps) * 1e3, rel=0.02)
    assert point.tpot.mean >= 300 * 0.98
    assert (point.requests, point.errors) == (30, 0)
    assert (point.input_tokens, point.output_tokens) == (30 * 32, 30 * 6)
    assert point.seconds >= 0.8 + 5 * 0.3


def test_arrivals_do_not_wait_for_answers() -> None:
    # A closed loop of any number of clients below 60 would wait for ever.
    with server(Delays(ttft=0.0, itl=0.0, together=60)) as slow:
        (point,) = run.run(settings(slow.url, rates=(200.0,), requests=60, warmup=0, timeout=60)).points
    assert point.errors == 0


def test_prompts_are_unique_from_the_first_tokens_on_and_warm_up_is_apart() -> None:
    with server(Delays(ttft=0.0, itl=0.0)) as slow:
        report = run.run(settings(slow.url, rates=(200.0, 400.0), requests=50, warmup=7))
    assert len(slow.prompts) == 7 + 2 * 50
    assert len({tuple(p[:16]) for p in slow.prompts}) == 107, "a prefix cache could hit"
    assert all(len(p) == 32 and set(p) <= set(load.IDS) for p in slow.prompts)
    assert [p.requests for p in report.points] == [50, 50]
    assert [p.rate for p in report.points] == [200, 400]
    assert report.unique_prompts and report.warmup == 7


@pytest.mark.parametrize("length", [1, 3, 6, 7, 200])
def test_prompts_have_the_length_that_was_asked_for(length: int) -> None:
    made = list(islice(load.prompts(1, length), 400))
    assert {len(p) for p in made} == {length}
    assert len({tuple(p) for p in made}) == 400
    assert made == list(islice(load.prompts(1, length), 400)) != list(islice(load.prompts(2, length), 400))


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    due = load.arrivals(3, 50.0, 20_000)
    gaps = [b - a for a, b in zip([0.0, *due], due, strict=False)]
    assert due == sorted(due) == load.arrivals(3, 50.0, 20_000)
    # Exponential gaps: the mean is the deviation, 1/rate, to within 5 sigma.
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=5 / 20_000**0.5)
    assert statistics.pstdev(gaps) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("requests", "percentiles", "refused"),
    [
        (30, (50, 99), "requests: must be at least 200 for a p99 (got 30)"),
        (199, (99,), "must be at least 200 for a p99"),
        (200, (50, 90, 99), None),
        (19, (90,), "must be at least 20 for a p90"),
        (20, (50, 90), None),
        (3, (50,), "must be at least 4 for a p50"),
        (3, (), None),
    ],
)
def test_a_percentile_of_too_few_requests_is_refused(
    requests: int, percentiles: tuple[int, ...], refused: str | None
) -> None:
    if refused is None:
        figures.check(requests, percentiles)
        return
    with pytest.raises(UserError) as error:
        figures.check(requests, percentiles)
    assert refused in str(error.value)


def test_a_percentile_that_was_not_asked_for_is_left_out_when_the_sample_is_small() -> None:
    found = figures.percentiles([0.1] * 30, 30)
    assert found is not None
    assert (found.p50, found.p90, found.p99) == (pytest.approx(100), pytest.approx(100), None)


def test_percentiles_are_numpys() -> None:
    import numpy as np

    values = list(np.random.default_rng(0).exponential(1, 333))
    for q in (0, 50, 90, 99, 100):
        assert figures.percentile(values, q) == pytest.approx(float(np.percentile(values, q)))


def test_errors_are_counted_and_do_not_touch_the_latencies(caplog: pytest.LogCaptureFixture) -> None:
    with server(Delays(ttft=0.2, itl=0.01, refuse=5, break_=7)) as slow, caplog.at_level(logging.WARNING):
        (point,) = run.run(settings(slow.url, requests=70, warmup=0)).points
    assert point.errors == 14 + 8  # every 5th, every 7th, and 35 and 70 are both
    assert point.output_tokens == (70 - 22) * 6
    assert point.ttft.p50 >= 200
    assert "14 requests at 40/s failed: 503" in caplog.text
    assert "8 requests at 40/s failed: the stream ended early" in caplog.text


def test_goodput_counts_only_what_meets_both_limits() -> None:
    fast = load.Outcome(0, ttft=0.1, total=0.2, output_tokens=11)
    slow_first = load.Outcome(0, ttft=0.5, total=0.6, output_tokens=11)
    slow_rest = load.Outcome(0, ttft=0.1, total=1.1, output_tokens=11)
    found = figures.point(5, [fast, slow_first, slow_rest, fast], 2.0, figures.Slo(ttft=200, tpot=50), None)
    assert found.goodput == 1.0
    assert figures.point(5, [fast], 2.0, figures.Slo(), None).goodput is None


def test_a_first_token_faster_than_the_slice_can_read_the_prompt_is_flagged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chip, rows = ACCELERATORS["v6e"], slice_of("v6e", "2x4")
    # 2 x 30.7e9 x 16384 FLOP on 8 x 918 TFLOP/s.
    assert figures.floor_ms(30.7e9, 16384, chip, rows) == pytest.approx(136.98, rel=1e-3)
    assert figures.floor_ms(None, 16384, chip, rows) is None
    assert figures.floor_ms(1e9, 10, ACCELERATORS["cpu"], slice_of("cpu")) is None
    with server(Delays(ttft=0.0, itl=0.0)) as slow, caplog.at_level(logging.WARNING):
        asked = {
            "accelerator": "v6e",
            "topology": "2x4",
            "params": 30.7e12,
            "input_tokens": 512,
            "requests": 10,
        }
        (point,) = run.run(settings(slow.url, **asked)).points
    assert point.under_floor == 10
    assert point.floor_ms == pytest.approx(4280, rel=1e-2)
    assert "cannot read the prompt even at its peak" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "fast"}, r'model: must be one that the server lists: slow \(got "fast"\)'),
        ({"input_tokens": 4000, "output_tokens": 97}, "inputTokens: must be at most 4096 with outputTokens"),
        ({"requests": 30, "percentiles": (99,)}, "at least 200 for a p99"),
        ({"accelerator": "v6e", "topology": "3x3"}, "accelerator.topology: must be one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_load(changes: dict[str, Any], message: str) -> None:
    with server(Delays()) as slow:
        with pytest.raises(UserError, match=message):
            run.run(settings(slow.url, **changes))
        assert slow.prompts == []


def test_a_server_that_refuses_everything_is_a_failure_and_not_a_figure() -> None:
    with server(Delays(refuse=1)) as slow:
        with pytest.raises(RuntimeError, match=r"all 40 requests at 40/s failed, most with: 503.*busy"):
            run.run(settings(slow.url, warmup=0))
        with pytest.raises(RuntimeError, match=r"warm-up failed: 503"):
            run.run(settings(slow.url))


def test_the_command_writes_the_report_a_table_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / "report.json"
    with server(Delays(ttft=0.01, itl=0.0)) as slow:
        config = settings(
            slow.url + "/v1/", rates=(50.0, 100.0), requests=20, output=f"file://{output}", slo_ttft_ms=1e6
        )
        path = tmp_path / "bench.json"
        path.write_text(config.text())
        assert main(["--config", str(path)]) == exits.DONE
    report = BenchReport.model_validate_json(output.read_text())
    assert [p.rate for p in report.points] == [50, 100]
    assert report.slo == {"ttftMs": 1e6}
    assert all(p.goodput for p in report.points)
    shown = capsys.readouterr().out
    assert "slow on cpu: 32 tokens in, 6 out" in shown and "TTFT p50" in shown and "goodput/s" in shown
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(output.read_text())["schema"] == "tunewright.dev/bench/v1"


def test_the_command_ends_with_2_on_bad_input_and_1_when_nobody_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"url": "http://127.0.0.1:9", "model": "m", "rates": [0], "outputt": "x"}')
    assert main(["--config", str(path)]) == exits.BAD_INPUT
    assert "Did you mean output?" in capsys.readouterr().err
    path.write_text(settings("http://127.0.0.1:9", output=str(tmp_path / "r.json")).text())
    assert main(["--config", str(path)]) == exits.RETRY
    assert "does not answer" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_a_url_and_options_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.json"
    with server(Delays(ttft=0.0, itl=0.0)) as slow:
        options = [
            "--rate",
            "100",
            "--rate",
            "200",
            "--requests",
            "20",
            "--input-tokens",
            "16",
            "--output-tokens",
            "2",
        ]
        options += ["--percentile", "50", "--percentile", "90", "--warmup", "0", "--output", str(output)]
        assert main([slow.url, *options]) == exits.DONE
        report = BenchReport.model_validate_json(output.read_text())
        assert (report.model, report.input_tokens, [p.rate for p in report.points]) == (
            "slow",
            16,
            [100, 200],
        )
        assert main([slow.url, *options, "--percentile", "99"]) == exits.BAD_INPUT
        assert "at least 200 for a p99" in capsys.readouterr().err
        assert main([slow.url, "--rate", "-1", "--seed", "-1"]) == exits.BAD_INPUT
        said = capsys.readouterr().err
        assert "command line: rates[0]" in said and "command line: seed" in said
        assert main([slow.url, "--config", "x.json"]) == exits.BAD_INPUT
        assert "--config: holds everything: leave out url" in capsys.readouterr().err
    assert main([]) == exits.BAD_INPUT
    assert "URL: is required" in capsys.readouterr().err
    assert main(["http://127.0.0.1:9"]) == exits.RETRY
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["localhost:8000"], "URL: must be http://host:port"),
        (["ftp://host/", "--model", "m"], "URL: must be http://host:port"),
        (
            ["http://127.0.0.1:9", "--model", "m", "--output", "gs://acme/b.json"],
            "must be a path or a file://",
        ),
        (["http://127.0.0.1:9", "--model", "m", "--output", "/dev/null/b.json"], "cannot be written"),
        (["http://127.0.0.1:9", "--model", "m", "--output", "/"], "cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_asked_or_written_is_refused_before_any_load(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(options) == exits.BAD_INPUT
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
