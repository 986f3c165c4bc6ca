"""How the tools are built and found again; nothing here compiles more than a few lines."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from . import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of tools."""
    monkeypatch.setenv("TUNEWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tools' sources that a test may edit."""
    copy = tmp_path / "tools"
    shutil.copytree(build.SOURCES, copy)
    monkeypatch.setattr(build, "SOURCES", copy)
    return copy


def test_without_go_the_message_names_both_ways_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.UnavailableError, match=r"install Go.*TUNEWRIGHT_TEST_KUBECONFIG"):
        build.folder("pause")


def test_an_old_go_is_named_with_its_version(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin" / "go"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho go1.21.4\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    with pytest.raises(build.UnavailableError, match=r"go1\.21\.4.*needs Go 1\.26"):
        build.folder("pause")


def test_an_unknown_tool_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no tool is called 'kubelet'; there are kubebox"):
        build.folder("kubelet")


def test_a_changed_source_is_another_folder(sources: Path) -> None:
    before = {name: build.fingerprint(name) for name in build.TOOLS}
    (sources / "jobset" / "go.mod").write_text("module other\n")
    changed = {name for name, hashed in before.items() if build.fingerprint(name) != hashed}
    assert changed == {"jobset"}


def test_every_tool_pins_its_dependencies() -> None:
    assert {path.name for path in build.SOURCES.iterdir()} == set(build.TOOLS)
    for name in build.TOOLS:
        requires = "require" in (build.SOURCES / name / "go.mod").read_text()
        assert (build.SOURCES / name / "go.sum").is_file() == requires, name


@pytest.mark.usefixtures("cache")
class TestWithGo:
    @pytest.fixture(autouse=True)
    def _go(self) -> None:
        try:
            build.go()
        except build.UnavailableError as lack:
            pytest.skip(str(lack))

    def test_two_runs_at_once_build_once(self, capfd: pytest.CaptureFixture[str]) -> None:
        found: list[Path] = []
        threads = [threading.Thread(target=lambda: found.append(build.binary("pause"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        assert found[0].stat().st_mode & 0o111
        assert capfd.readouterr().err.count("built pause") == 1

    def test_a_source_that_does_not_compile_leaves_nothing_in_the_cache(
        self, cache: Path, sources: Path
    ) -> None:
        (sources / "pause" / "main.go").write_text("package main\nfunc main() { nonsense() }\n")
        with pytest.raises(build.BuildError, match="undefined: nonsense"):
            build.folder("pause")
        assert [path.name for path in (cache / "tools").iterdir()] == ["pause.lock"]

    def test_the_command_prints_the_folder_of_what_was_asked(self) -> None:
        command = [sys.executable, "-m", "tests.cluster.build", "pause"]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(build.folder("pause"))
