"""`tunewright crds`: the CustomResourceDefinitions, from the models."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a file for each kind into this folder, instead of printing them.",
)
def crds(output: Path | None) -> None:
    """Print or write the CustomResourceDefinitions.

    tunewright crds | kubectl apply --server-side -f -
    """
    from tunewright_operator.api.crds import render, write

    if output is None:
        click.echo("---\n".join(render().values()), nl=False)
        return
    for path in write(output):
        click.echo(str(path))
