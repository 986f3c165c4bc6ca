"""`tunewright crds`: the CustomResourceDefinitions, from the models."""

from __future__ import annotations

from pathlib import Path

import click

from tunewright_workloads.contract import exits


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a file for each kind into this folder, instead of printing them.",
)
@click.option(
    "--check",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write nothing: exit with 1 when the files in this folder are not those of this release.",
)
def crds(output: Path | None, check: Path | None) -> None:
    """Print or write the CustomResourceDefinitions.

    tunewright crds | kubectl apply --server-side -f -
    """
    from tunewright_operator.api.crds import render, stale, write

    if output is not None and check is not None:
        raise click.UsageError("--output and --check exclude each other")
    if check is not None:
        old = stale(check)
        for name in old:
            click.echo(f"{check / name} is stale: write it with `tunewright crds --output {check}`", err=True)
        click.get_current_context().exit(exits.RETRY if old else exits.DONE)
    if output is None:
        click.echo("---\n".join(render().values()), nl=False)
        return
    for path in write(output):
        click.echo(str(path))
