"""What CI says at its end: one closing line for all runs, in which failures show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def closing(tmp_path: Path, *logs: str) -> str:
    paths = []
    for number, text in enumerate(logs):
        paths.append(tmp_path / str(number))
        paths[-1].write_text(text)
    command = [sys.executable, ROOT / "tools/closing", *paths]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(" =\n")


def test_outcomes_of_all_runs_are_summed(tmp_path: Path) -> None:
    first = "= 1 failed, 100 passed, 4 skipped, 30 deselected, 1 warning, 2 errors in 700.10s (0:11:40) ="
    second = "noise\n== 2 failed, 35 passed, 1 error in 300.00s (0:05:00) ==\nmake: *** Error 1\n"
    assert closing(tmp_path, first, second) == (
        "3 failed, 135 passed, 4 skipped, 1 warning, 3 errors in 1000.10s"
    )


def test_one_run_is_told_as_it_is(tmp_path: Path) -> None:
    assert closing(tmp_path, "=== 35 passed in 3.20s ===") == "35 passed in 3.20s"


@pytest.mark.parametrize("text", ["", "collected 35 items\nTerminated\n"])
def test_a_run_that_was_cut_off_is_an_error(tmp_path: Path, text: str) -> None:
    assert closing(tmp_path, "=== 35 passed in 3.20s ===", text) == "35 passed, 1 error in 3.20s"
