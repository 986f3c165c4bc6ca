"""Commands that are workloads: everything after the name goes to their own process."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from tunewright_operator.local import shadows

_MODULES = {
    "data": "data",
    "merge": "merge",
    "verify": "merge.verify",
    "bench": "bench",
    "compare": "compare",
}


def start(module: str, arguments: list[str]) -> int:
    """Runs `python -m tunewright_workloads.<module>` in the foreground. Returns its exit code.

    -P: the folder that the user is in holds the user's files, and no module of ours or of our packages.
    Ctrl-C reaches the workload too, which ends in its own way; we wait for it.
    """
    shadows.refuse(os.environ)
    process = subprocess.Popen([sys.executable, "-P", "-m", f"tunewright_workloads.{module}", *arguments])
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue


def _command(name: str, module: str) -> click.Command:
    from tunewright_operator.cli import COMMANDS

    @click.command(
        name,
        help=COMMANDS[name][1],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> int:
        return start(module, list(arguments))

    return command


data, merge, verify, bench, compare = (_command(name, module) for name, module in _MODULES.items())
