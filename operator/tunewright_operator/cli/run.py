"""`tunewright run`: the planned pods as processes on this machine."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import click

from tunewright_operator import api
from tunewright_operator.cli import options
from tunewright_operator.local.address import refuse_address
from tunewright_operator.local.ask import AskError, ask, curl
from tunewright_operator.local.runner import Runner, Serving, StageError, StoppedError
from tunewright_operator.local.signals import Signals
from tunewright_operator.local.view import view
from tunewright_operator.plan import Plan, Settings
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import Fault, UserError, show

Made = list[tuple[api.FineTuneJob | api.ServeEndpoint, Plan]]


@click.command()
@options.file
@options.namespace
@click.option("--ask", "question", metavar="QUESTION", help="Print the served model's answer and end.")
@click.option("--compare-base", is_flag=True, help="With --ask: ask the base model too, before training.")
@click.option("--answers", type=click.Path(dir_okay=False, path_type=Path), help="Write the answers as JSON.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(1), help="Of an answer.")
@click.option("--endpoint", "chosen", metavar="NAME", help="Serve only this ServeEndpoint of the file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on; default: a free one.")
@options.program
@click.option(
    "--engine", type=click.Choice(["jax", "vllm"]), help="Serve with this one; default: the file's."
)
@click.option("--no-serve", is_flag=True, help="End when the jobs are done.")
@click.option("--fresh", is_flag=True, help="Start the jobs over, deleting what an earlier run left here.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".tunewright"),
    show_default=True,
    envvar="TUNEWRIGHT_STATE",
    help="Folder for claims, logs and state.",
)
def run(
    source: str, namespace: str, question: str | None, compare_base: bool, answers: Path | None,
    max_tokens: int, chosen: str | None, host: str, port: int | None, program: Literal["auto", "torch"],
    engine: Literal["jax", "vllm"] | None, no_serve: bool, fresh: bool, state: Path,
) -> int:  # fmt: skip
    """Run a file's resources on this machine: train, merge, serve.

    The same pods that a cluster would get are run as processes, in order. A second run goes on
    where the first one ended. Without --ask the endpoint stays up until Ctrl-C.
    """
    _refuse(question, compare_base, answers, no_serve)
    resources = options.load(source, namespace, here=True)
    _only_cpu(resources)
    if engine:
        _set_engine(resources, engine)
    shown = view()
    try:
        with Signals() as signals:
            runner = Runner(state, shown, signals)
            made = options.plans(
                resources, Settings(local=True, program=program), _outputs(resources, runner)
            )
            jobs = [plan for resource, plan in made if isinstance(resource, api.FineTuneJob)]
            served = [] if no_serve else _served(made, chosen, question, port)
            if answers:
                _refuse_file("--answers", answers)
            if served and not any(map(runner.running, served)):  # a server of ours gives its port back
                refuse_address(host, port)
            _own_ignore(state)
            before = None
            if compare_base and question:
                before = _ask_base(runner, served[0], jobs, question, max_tokens)
                click.echo(f"Question: {question}\nBase model: {_short(before)}")
            for plan in jobs:
                runner.job(plan, fresh=fresh)
                shown.note(f"{plan.name}: the model is at {runner.path(plan.output)}")
            if question:
                if any(stage.name == "bench" for stage in served[0].stages):
                    shown.note("spec.benchmark is measured when the endpoint stays up: run without --ask")
                with runner.endpoint(served[0], host=host, port=port) as serving:
                    after = ask(serving.endpoint, question, max_tokens=max_tokens)
                click.echo(f"{'Fine-tuned model: ' if compare_base else ''}{after}")
                if answers:
                    _write(answers, question, before, after)
            elif served:
                _serve(runner, served, host, port)
        return exits.DONE
    except StoppedError as error:
        click.echo(error, err=True)
        return error.code
    except StageError as error:
        click.echo(error, err=True)
        return error.code
    except AskError as error:
        click.echo(error, err=True)
        return exits.RETRY


def _refuse_file(option: str, path: Path) -> None:
    """Raises UserError where a file cannot be written: before the work, not after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as error:
        fix = "Choose another place."
        raise UserError(Fault(option, f"cannot be written: {error.strerror}", show(str(path)), fix)) from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _refuse(question: str | None, compare_base: bool, answers: Path | None, no_serve: bool) -> None:
    faults = []
    for name, given in (("--compare-base", compare_base), ("--answers", answers)):
        if given and not question:
            faults.append(Fault(name, "needs --ask QUESTION"))
    if question is not None and not question.strip():
        faults.append(Fault("--ask", "needs a question"))
    if question and no_serve:
        faults.append(Fault("--no-serve", "leaves nobody to answer --ask"))
    if faults:
        raise UserError(faults)


def _only_cpu(resources: api.Resources) -> None:
    faults = [
        Fault(
            f"{r.kind}/{r.metadata.name}: spec.accelerator.type",
            "must be cpu to run on this machine",
            show(r.spec.accelerator.type),
            "`tunewright plan -f` shows what a cluster would run.",
        )
        for r in resources
        if r.spec.accelerator.type != "cpu"
    ]
    if faults:
        raise UserError(faults)


def _set_engine(resources: api.Resources, engine: str) -> None:
    """Puts `engine` in the place of every endpoint's own, as if the file said so."""
    for i, resource in enumerate(resources):
        if isinstance(resource, api.ServeEndpoint):
            data = resource.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
            data["spec"].setdefault("engine", {})["name"] = engine
            resources[i] = api.parse(api.ServeEndpoint, data, f"{resource.kind}/{resource.metadata.name}: ")


def _outputs(resources: api.Resources, runner: Runner) -> dict[tuple[str, str], str]:
    """Models of jobs that were run earlier, for endpoints whose job is not in the file."""
    found = {}
    here = {(r.metadata.namespace, r.metadata.name) for r in resources if isinstance(r, api.FineTuneJob)}
    for resource in resources:
        if isinstance(resource, api.ServeEndpoint) and resource.spec.model.fine_tune_job_ref:
            key = (resource.metadata.namespace or "default", resource.spec.model.fine_tune_job_ref.name)
            uri = None if key in here else runner.known_output(*key)
            if uri:
                found[key] = uri
    return found


def _served(made: Made, chosen: str | None, question: str | None, port: int | None) -> list[Plan]:
    """The endpoints to serve. Raises UserError where the options do not fit them."""
    found = [plan for resource, plan in made if isinstance(resource, api.ServeEndpoint)]
    names = ", ".join(plan.name for plan in found) or "none"
    if chosen:
        found = [plan for plan in found if plan.name == chosen]
        if not found:
            raise UserError(
                Fault("--endpoint", f"must name a ServeEndpoint of the file: {names}", show(chosen))
            )
    if question and not found:
        raise UserError(
            Fault("--ask", "needs a ServeEndpoint in the file", None, "Add one that names the job.")
        )
    if len(found) > 1 and (question or port):
        option = "--ask" if question else "--port"
        raise UserError(
            Fault(option, f"needs one endpoint, and there are several: {names}", None, "Add --endpoint.")
        )
    return found


def _ask_base(runner: Runner, served: Plan, jobs: list[Plan], question: str, max_tokens: int) -> str:
    """The base model's answer, by the same server with the base in place of the merged model."""
    job = next((j for j in jobs if j.output == served.output), None)
    if job is None:
        raise UserError(
            Fault("--compare-base", "needs the FineTuneJob of the endpoint in the file", None, "Add the job.")
        )
    with runner.endpoint(served, changes=runner.base(job)) as serving:
        return ask(serving.endpoint, question, max_tokens=max_tokens)


def _serve(runner: Runner, served: list[Plan], host: str, port: int | None) -> None:
    with ExitStack() as stack:
        up: list[Serving] = []
        for plan in served:
            up.append(stack.enter_context(runner.endpoint(plan, host=host, port=port)))
            one = up[-1].endpoint
            click.echo(f"{plan.name} is served at {one.url}/v1 (model {one.model})\n\n{curl(one)}\n")
            table = runner.benchmark(plan, up[-1])
            if table:
                click.echo(f"{table}\n")
        click.echo("Ctrl-C ends it.", err=True)
        Serving.wait_all(up)


def _short(text: str) -> str:
    """An untrained model never stops: its beginning says enough."""
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:159]}…"


def _write(path: Path, question: str, before: str | None, after: str) -> None:
    record: dict[str, Any] = {"question": question, "after": after}
    if before is not None:
        record["before"] = before
    temporary = _beside(path)
    temporary.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _own_ignore(state: Path) -> None:
    """Keeps the state directory out of the user's repository."""
    ignore = state / ".gitignore"
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        fix = "Choose another place."
        raise UserError(
            Fault("--state", f"cannot be written: {error.strerror}", show(str(state)), fix)
        ) from None
