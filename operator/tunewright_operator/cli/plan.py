"""`tunewright plan`: what a cluster would get, and every fault that can be known before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from tunewright_operator.cli import options
from tunewright_operator.cli.datasets import check
from tunewright_operator.plan import Settings
from tunewright_workloads.contract import prices
from tunewright_workloads.contract.accelerators import ACCELERATORS


@click.command()
@options.file
@options.namespace
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@click.option("--local", is_flag=True, help="Plan what `tunewright run` would run on this machine.")
@click.option(
    "--registry", default="", metavar="PREFIX/", help="Put before the names of Tunewright's images."
)
@click.option(
    "--no-jobset", is_flag=True, help="The cluster lacks JobSet: use Indexed Jobs for several machines."
)
@options.program
@options.prices
@click.option("--no-data", is_flag=True, help="Do not look into the datasets.")
def plan(
    source: str, namespace: str, output: str, local: bool, registry: str, no_jobset: bool,
    program: Literal["auto", "torch"], prices_file: Path | None, no_data: bool,
) -> None:  # fmt: skip
    """Check a file and print the objects that a cluster would get.

    Nothing is contacted: not a cluster, not a bucket. Datasets that are on this machine are read.
    """
    resources = options.load(source, namespace, here=local)
    book = prices.read(prices_file, tuple(ACCELERATORS)) if prices_file else {}
    settings = Settings(registry=registry, jobset=not no_jobset, local=local, program=program, prices=book)
    made = options.plans(resources, settings)
    if not no_data:
        check(made)
    objects = [m for _, plan in made for m in plan.manifests()]
    click.echo(dump(objects, output), nl=False)
    for resource, plan in made:
        for note in (*plan.notes, *([plan.price] if plan.price else [])):
            click.echo(f"{resource.kind}/{resource.metadata.name}: {note}", err=True)


def dump(objects: list[dict[str, Any]], output: str) -> str:
    """A YAML stream, or a List in JSON."""
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        return json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
    import yaml

    class Dumper(yaml.SafeDumper):
        """Without anchors, and with texts of several lines as such."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return "---\n".join(yaml.dump(o, Dumper=Dumper, sort_keys=False, allow_unicode=True) for o in objects)
