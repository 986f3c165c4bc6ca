"""`tunewright preflight`: does it fit, by arithmetic."""

from __future__ import annotations

import click

from tunewright_operator.cli import options
from tunewright_operator.plan import Settings


@click.command()
@options.file
@options.namespace
def preflight(source: str, namespace: str) -> None:
    """Check memory and sharding before a slice is bought.

    A lower bound of what each device must hold; what is refused here cannot fit.
    """
    resources = options.load(source, namespace, here=False)
    for resource, plan in options.plans(resources, Settings()):
        notes = plan.notes or ("memory: not checked on cpu",)
        for note in notes:
            click.echo(f"{resource.kind}/{resource.metadata.name}: {note}")
