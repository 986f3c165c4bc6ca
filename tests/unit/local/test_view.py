"""What a run shows."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest

from tunewright_operator.local.view import Bars, Lines, duration, figures, view
from tunewright_workloads.contract.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(**fields) -> Progress:
    return Progress(stage="train", **fields)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (7384, "2 h 3 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"step": 3}, "3"),
        ({"step": 0, "total_steps": 9}, "0/9"),
        (
            {"step": 3, "total_steps": 9, "loss": 0.12345, "tokens_per_second": 1234.4},
            "3/9  loss 0.1235  1,234 tokens/s",
        ),
        ({"step": 9, "total_steps": 9, "eval_loss": 1.5, "done": True}, "9/9  eval loss 1.5000"),
        ({"message": "loading the base model"}, "loading the base model"),
    ],
)
def test_only_what_is_known_is_shown(fields, text):
    assert figures(record(**fields)) == text


def test_the_eta_is_shown_while_it_runs_and_not_after():
    eta = datetime.now(UTC) + timedelta(seconds=90)
    assert "ETA 1 min" in figures(record(eta=eta))
    assert "ETA" not in figures(record(eta=eta, done=True))


def test_bars_on_a_terminal_and_lines_elsewhere():
    assert isinstance(view(Terminal()), Bars)
    assert isinstance(view(io.StringIO()), Lines)


def test_lines_are_rare_and_the_last_one_is_not_lost():
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin("train", 1)
    for step in range(50):
        lines.update("train", record(step=step, total_steps=50))
    lines.update("train", record(step=50, total_steps=50, done=True))
    lines.end("train", "done in 1 s")
    assert stream.getvalue().splitlines() == [
        "train: started", "train: 0/50", "train: 50/50", "train: done in 1 s",
    ]  # fmt: skip


def test_a_terminal_gets_the_figures_and_every_note_as_it_was_written():
    stream = Terminal()
    bars = Bars(stream)
    bars.begin("train", 2)
    bars.update("train", record(step=3, total_steps=9, loss=0.5, message="[red]not markup[/red]"))
    bars.end("train", "done [in] 1 s")
    bars.note("spec.dataset.train[0]")
    text = stream.getvalue()
    assert "train #2" in text
    assert "3/9  loss 0.5000  [red]not markup[/red]" in text
    assert "train: done [in] 1 s" in text
    assert "spec.dataset.train[0]" in text
