"""`make install` leaves a command that runs, wherever the clone is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UV = f"""#!/bin/sh
case "$1" in
venv) shift 2; shift 2; exec {sys.executable} -m venv --without-pip "$1" ;;
esac
"""
"""uv as `tools/environment` calls it: `venv` makes one, everything else is done already."""


@pytest.mark.parametrize("name", ["a b", "ü", "long-" * 40])
def test_the_command_runs_from_any_folder_of_the_clone(tmp_path: Path, name: str) -> None:
    clone = tmp_path / name
    (clone / ".uv/bin").mkdir(parents=True)
    (clone / ".uv/bin/uv").write_text(UV)
    (clone / ".uv/bin/uv").chmod(0o755)
    (clone / "lock.txt").touch()
    for package in ("operator", "workloads"):
        (clone / package).symlink_to(ROOT / package)
    made = [str(ROOT / "tools/environment"), ".venv", "lock.txt", sys.executable, "--editable"]
    subprocess.run(made, cwd=clone, check=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [str(clone / ".venv/bin/tunewright"), "run", "-f", "no such file.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        2,
        "no such file.yaml: cannot be read: No such file or directory\n",
    )
