"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunewright_operator import api
from tunewright_operator.plan import Plan, Settings
from tunewright_operator.plan import endpoint as plan_endpoint
from tunewright_operator.plan import job as plan_job
from tunewright_workloads.contract.faults import UserError

file: Any = click.option(
    "-f",
    "--file",
    "source",
    required=True,
    metavar="FILE",
    help="YAML with FineTuneJobs and ServeEndpoints; - reads standard input.",
)

namespace: Any = click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    help="For resources that name none.",
)

prices: Any = click.option(
    "--prices",
    "prices_file",
    type=click.Path(path_type=Path),
    help="JSON file with prices that stand before the catalog's.",
)

program: Any = click.option(
    "--program",
    type=click.Choice(["auto", "torch"]),
    default="auto",
    show_default=True,
    help="What trains: auto is PyTorch on GPUs and JAX elsewhere; torch is PyTorch on CPUs, too.",
)


def load(source: str, namespace: str, *, here: bool) -> api.Resources:
    """The resources of a file. `here`: they run on this machine, so file:// may be relative to it."""
    path = Path(source)
    base = (Path() if source == "-" else path.parent) if here else None
    found = api.load(source if source == "-" else path, base=base.absolute() if base is not None else None)
    for i, resource in enumerate(found):
        if resource.metadata.namespace is None:
            meta = resource.metadata.model_copy(update={"namespace": namespace})
            found[i] = resource.model_copy(update={"metadata": meta})
    return found


def plans(
    resources: api.Resources, settings: Settings, outputs: dict[tuple[str, str], str] | None = None
) -> list[tuple[api.FineTuneJob | api.ServeEndpoint, Plan]]:
    """Every resource with its plan: jobs first. Raises UserError with the faults of all.

    outputs: URIs of models by (namespace, name) of jobs that are not in the file.
    """
    jobs = {(r.metadata.namespace, r.metadata.name): r for r in resources if isinstance(r, api.FineTuneJob)}
    made: list[tuple[api.FineTuneJob | api.ServeEndpoint, Plan]] = []
    faults = []
    for resource in sorted(resources, key=lambda r: isinstance(r, api.ServeEndpoint)):
        try:
            if isinstance(resource, api.FineTuneJob):
                made.append((resource, plan_job(resource, settings)))
                continue
            ref = resource.spec.model.fine_tune_job_ref
            key = (resource.metadata.namespace or "default", ref.name if ref else "")
            uri = (outputs or {}).get(key)
            made.append((resource, plan_endpoint(resource, settings, jobs.get(key), uri=uri)))
        except UserError as error:
            where = f"{resource.kind}/{resource.metadata.name}"
            faults += [_at(fault, where) for fault in error.faults]
    if faults:
        raise UserError(faults)
    return made


def _at(fault: Any, where: str) -> Any:
    from dataclasses import replace

    return replace(fault, place=f"{where}: {fault.place}")
