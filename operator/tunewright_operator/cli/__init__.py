"""`tunewright`: run, plan and check resources, and start workloads by hand.

Commands are imported when they are used, so that `--help` is quick; a workload is always a process
of its own (`python -m tunewright_workloads.X`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from tunewright_workloads import __version__
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import UserError, machine

COMMANDS = {
    "run": ("run", "Run a file's resources on this machine: train, merge, serve."),
    "plan": ("plan", "Check a file and print the objects that a cluster would get."),
    "preflight": ("preflight", "Check memory and sharding before a slice is bought."),
    "crds": ("crds", "Print or write the CustomResourceDefinitions."),
    "data": ("workloads", "Check a dataset and show what would be trained on."),
    "merge": ("workloads", "Merge an adapter into a base checkpoint."),
    "verify": ("workloads", "Check a published model against its manifest."),
    "bench": ("workloads", "Measure an OpenAI endpoint under load."),
    "compare": ("workloads", "Compare the reports of two training runs."),
    "version": ("version", "Print the version."),
}
"""Name -> module below this package, and the line that `--help` shows."""


class Commands(click.Group):
    """Knows every command's name and first line without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from tunewright_workloads.contract.faults import nearest

        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = nearest(name, list(COMMANDS))
            ctx.fail(f"no command {name!r}." + (f" Did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tunewright", message="%(prog)s %(version)s")
def cli() -> None:
    """Fine-tune, merge and serve Gemma 4: on this machine, or as objects of a cluster.

    \b
    tunewright run -f examples/quickstart.yaml --ask "What is Tunewright?"
    tunewright plan -f job.yaml
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit code of the contract: 0, 2 for bad input, 75, 128 + signal, 1."""
    try:
        code = cli.main(
            list(arguments) if arguments is not None else None, "tunewright", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.DONE
    except UserError as error:
        print(error.text(), file=sys.stderr)
        return exits.BAD_INPUT
    except click.ClickException as error:
        error.show()
        return exits.BAD_INPUT
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        told = machine(error)
        if told is None:
            raise
        print(told, file=sys.stderr)
        return exits.RETRY
