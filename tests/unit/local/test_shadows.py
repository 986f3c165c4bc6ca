"""A user's file that would be imported in the place of a package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunewright_operator.local import shadows
from tunewright_workloads.contract.faults import UserError

REPO = Path(__file__).parents[3]


@pytest.mark.parametrize("named", [".", "", "{here}", "/nowhere:{here}"])
def test_a_file_on_pythonpath_that_hides_a_package_is_named(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    environ = {"PYTHONPATH": named.format(here=tmp_path)}
    if not named:
        shadows.refuse(environ)  # to Python, an empty one is none
        return
    with pytest.raises(UserError, match=r"numpy\.py would be imported in place of the package numpy"):
        shadows.refuse(environ)


def test_packages_and_other_files_on_pythonpath_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text("")
    (tmp_path / "tools.py").write_text("")
    shadows.refuse({"PYTHONPATH": str(tmp_path)})


def test_a_file_in_the_users_folder_is_not_imported_by_a_workload(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('the user's own numpy')")
    env = {**os.environ, "PYTHONPATH": f"{REPO}/operator:{REPO}/workloads"}
    code = "import sys; from tunewright_operator.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "merge", "--base", "b", "--adapter", "a", "--output", "o"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "own numpy" not in done.stderr
    assert done.returncode == 2
    assert "there is no such file or directory" in done.stderr
