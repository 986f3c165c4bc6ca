"""What the documentation names is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tunewright_operator.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_the_index_lists_every_page():
    index = (ROOT / "docs/README.md").read_text()
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.is_relative_to(ROOT / "docs")]
    assert not [page for page in pages if page != "README.md" and f"({page})" not in index]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_link_to_a_file_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_command_line_names_commands_and_options_that_exist(page: Path):
    text = page.read_text().replace("\\\n", " ")
    context = click.Context(cli)
    for name, rest in re.findall(r"(?<![\w./-])(?:\.venv/bin/)?tunewright ([a-z]+)\b(?!/)([^\n`|]*)", text):
        line = f"tunewright {name}{rest}"
        if "--" not in rest and "-f" not in rest and name not in COMMANDS:
            continue  # prose
        assert name in COMMANDS, line
        if COMMANDS[name][0] == "workloads":
            continue
        command = cli.get_command(context, name)
        assert command is not None
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        asked = re.findall(r"(?<!\S)(--[a-z][a-z-]*|-[a-z])(?![\w-])", rest.partition("#")[0])
        assert not set(asked) - known, line
