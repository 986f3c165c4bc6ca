"""The Dockerfiles and the locks that they are built from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted(ROOT.glob("Dockerfile.*"))
LOCKS = sorted(p for p in (ROOT / "requirements").glob("*.txt") if not p.name.startswith("overrides"))


def test_there_are_images_for_the_operator_training_and_serving():
    assert [p.suffix for p in DOCKERFILES] == [".operator", ".serve", ".train"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_is_built_in_stages_on_a_base_of_ones_choice_and_runs_as_nobody(path: Path):
    text = path.read_text()
    assert re.search(r"^ARG BASE", text, re.M) and "FROM ${BASE}" in text
    assert len(re.findall(r"^FROM ", text, re.M)) == 2
    last = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (\S+)", last, re.M)[-1] == "65532:65532"
    assert "--require-hashes" in text
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        for part in source.replace("${LOCK}", "tpu").split():
            assert (ROOT / part).exists(), part


@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.name)
def test_a_lock_pins_with_hashes_and_names_no_address(path: Path):
    text = path.read_text()
    pins = re.findall(r"^[a-z0-9].*==", text, re.M)
    assert pins and text.count("--hash=sha256:") >= len(pins)
    assert "http" + "://" not in text and "https" + "://" not in text
    assert "index-url" not in text and "find-links" not in text


def test_every_extra_is_in_a_lock():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    script = (ROOT / "tools" / "lock").read_text()
    assert {f"--extra {name}" for name in extras} <= set(re.findall(r"--extra [a-z-]+", script))


@pytest.mark.parametrize("name", ["train", "gpu", "serve", "operator", "local"])
def test_what_runs_in_an_image_is_what_was_tested(name: str):
    def pins(lock: str) -> dict[str, str]:
        text = (ROOT / "requirements" / f"{lock}.txt").read_text()
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))

    tested = pins("test")
    assert {k: v for k, v in pins(name).items() if tested.get(k, v) != v} == {}
