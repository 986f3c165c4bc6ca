"""`tunewright version`."""

from __future__ import annotations

import click

from tunewright_operator.plan.settings import VERSION


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"tunewright {VERSION}")
