"""Runs a plan's stages in order, as a cluster would: attempts, restarts, deadlines, markers."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright_operator.local import address, logs, words
from tunewright_operator.local.artifact import wrong
from tunewright_operator.local.pod import Command, Rewrite, materialise
from tunewright_operator.local.process import Process, end_orphan, orphan
from tunewright_operator.local.signals import Signals
from tunewright_operator.local.state import Folders, State, differences, locked
from tunewright_operator.local.view import View, duration
from tunewright_operator.plan.stage import Manifest, Plan, Stage
from tunewright_workloads.contract import exits, progress, uris
from tunewright_workloads.contract.faults import Fault, UserError


class StoppedError(Exception):
    """A signal ended the run. `code` is the exit code of the command line."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StageError(Exception):
    """A stage ended for good without being done. `code` is the exit code of the command line."""

    def __init__(self, stage: str, code: int, text: str) -> None:
        super().__init__(text)
        self.stage, self.code = stage, code


@dataclass(frozen=True)
class Endpoint:
    """A served model on this machine."""

    url: str
    model: str


class Runner:
    """Runs plans below one state directory.

    pause: seconds before the first retry; doubled each time, at most 30.
    """

    def __init__(self, root: Path, view: View, signals: Signals, *, pause: float = 1.0) -> None:
        self.folders = Folders(root.absolute())
        self.view, self.signals, self.pause = view, signals, pause
        self._begun = time.monotonic()

    # -- jobs ---------------------------------------------------------------------------------

    def job(self, plan: Plan, *, fresh: bool = False) -> None:
        """Runs every stage that is not done. Raises UserError, StageError or StoppedError.

        fresh: forget an earlier run of this job and what it left in the claims of this machine.
        """
        home = self.folders.home(plan.namespace, plan.name)
        what = f"{plan.kind} {plan.namespace}/{plan.name}"
        with locked(home / "job.lock", what):
            self._end_orphans(plan)
            if fresh:
                self._forget(plan)
            state = State(home / "job.json")
            self._refuse_changes(plan, state, what)
            again = False
            self._begun = time.monotonic()
            for stage in plan.stages:
                command = self._materialise(plan, stage)
                if not again and self._done(stage, command, state):
                    self.view.note(f"{stage.name}: already done ({state.record(stage.name)['finished']})")
                    continue
                again = True
                state.reopen(stage.name)
                self._run(plan, stage, state)
            state.output(plan.output)

    def path(self, uri: str) -> str:
        """A URI of the spec as a path on this machine, where it is one."""
        parsed = uris.parse(uri)
        if parsed.scheme == "pvc":
            return str(self.folders.claims / parsed.root / parsed.path)
        return parsed.path if parsed.scheme == "file" else str(parsed)

    def base(self, plan: Plan) -> dict[str, Any]:
        """What makes an endpoint serve the base model of a job in place of its result."""
        stage = plan.stage("train")
        model = getattr(stage.config, "model")  # noqa: B009
        source = self._materialise(plan, stage).paths(model.source)
        return {"model": source, "revision": model.revision, "requireManifest": False}

    def known_output(self, namespace: str, name: str) -> str | None:
        """URI of the model that an earlier run of a job left, as its spec wrote it."""
        path = self.folders.home(namespace, name) / "job.json"
        return State(path).data.get("output")

    def _materialise(
        self,
        plan: Plan,
        stage: Stage,
        changes: Mapping[str, Any] | None = None,
        hosts: Mapping[str, str] | None = None,
    ) -> Command:
        return materialise(
            stage,
            home=self.folders.pod(plan.namespace, plan.name, stage.name),
            claims=self.folders.claims,
            cache=self.folders.cache,
            namespace=plan.namespace,
            changes=changes,
            hosts=hosts,
        )

    def running(self, plan: Plan) -> bool:
        """Whether a stage of this plan runs already: another runner's, or one left by a killed runner."""
        files = (self.folders.pidfile(plan.namespace, plan.name, stage.name) for stage in plan.stages)
        return any(orphan(file) is not None for file in files)

    def _end_orphans(self, plan: Plan) -> None:
        for stage in plan.stages:
            grace = _grace(stage)
            pidfile = self.folders.pidfile(plan.namespace, plan.name, stage.name)
            pid = end_orphan(pidfile, grace)
            if pid is not None:
                self.view.note(f"{stage.name}: ended process {pid}, left by a run that was killed")

    def _refuse_changes(self, plan: Plan, state: State, what: str) -> None:
        """A run goes on only with the spec and the local files that it was begun with."""
        faults = []
        for stage in plan.stages:
            record = state.record(stage.name)
            if not record:
                continue
            config = stage.config.model_dump(mode="json", by_alias=True) if stage.config else {}
            changed = differences(record.get("config", {}), config)
            if not changed and not record.get("finished") and record["digest"] != stage.digest():
                changed = ["its command or environment"]  # another release; what is done stays done
            if not changed:
                before, now = record.get("inputs", {}), inputs(stage, self._materialise(plan, stage).paths)
                changed = [f"the file {name}" for name in now if before.get(name) != now[name]]
            fix = "Undo the change, give the job a new name, or start over with --fresh."
            faults += [Fault(f"{what}, stage {stage.name}", f"changed since the run began: {change}", None, fix)
                       for change in changed]  # fmt: skip
        if faults:
            raise UserError(faults)

    def _forget(self, plan: Plan) -> None:
        """Deletes what an earlier run left, inside the state directory only."""
        faults, folders = [], []
        for stage in plan.stages:
            uri = self._materialise(plan, stage).paths(str(getattr(stage.config, "output", "")))
            folder = Path(uri.removeprefix("file://"))
            if not uri:
                continue
            if uri.startswith("file://") and folder.is_relative_to(self.folders.claims):
                folders.append(folder)
            elif not uri.startswith("file://") or folder.exists():
                rule = "is outside of the state directory, where --fresh deletes nothing"
                fix = "Delete it yourself and run without --fresh, or choose another output."
                faults.append(Fault(f"{plan.name}: the output of stage {stage.name}", rule, uri, fix))
        if faults:
            raise UserError(faults)
        home = self.folders.home(plan.namespace, plan.name)
        (home / "job.json").unlink(missing_ok=True)
        for stage in plan.stages:
            folders.append(self.folders.pod(plan.namespace, plan.name, stage.name))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _done(self, stage: Stage, command: Command, state: State) -> bool:
        """Marked as done, and what it made is still there and whole."""
        if not state.record(stage.name).get("finished"):
            return False
        artifact = command.paths(stage.artifact or "")
        path = Path(artifact.removeprefix("file://"))
        if artifact.startswith("file://") and (fault := wrong(path)):
            self.view.note(f"{stage.name}: {artifact} {fault}; running it again")
            return False
        return True

    def _run(self, plan: Plan, stage: Stage, state: State) -> None:
        """One stage until it is done, with the retries that its Job allows."""
        name = stage.name
        limit = int(stage.job.get("backoffLimit", 6))
        deadline = plan.deadline
        begun = time.monotonic()
        failures = 0
        while True:
            self._stop_if_asked(name)
            command = self._materialise(plan, stage)
            attempt = state.begin(stage, inputs(stage, command.paths))
            log = self.folders.log(plan.namespace, plan.name, name)
            offset = logs.begin(log, attempt, command)
            self.view.begin(name, attempt)
            left = None if deadline is None else deadline - (time.monotonic() - self._begun)
            code, late = self._attempt(plan, stage, command, log, left)
            tail = logs.tail(log, offset)
            if code == exits.DONE:
                state.finish(stage)
                self.view.end(name, f"done in {duration(time.monotonic() - begun)}")
                return
            if late:
                self.view.end(name, "ended by limits.runTime")
                raise StageError(
                    name,
                    exits.RETRY,
                    f"{name} ran longer than limits.runTime allows ({duration(deadline or 0)}) and was ended; "
                    f"{words.kept(name)}. Raise the limit and run again to go on.",
                )
            if self.signals.asked is not None:
                self.view.end(name, "stopped")
                saved = code == exits.PREEMPTED
                note = "its checkpoint is saved" if saved else words.kept(name)
                raise StoppedError(
                    exits.PREEMPTED if saved else 128 + self.signals.asked,
                    f"{name} stopped; {note}. Run the same command again to go on.",
                )
            if code in exits.FATAL:
                self.view.end(name, "refused its input")
                raise StageError(name, code, f"{name} refused its input:\n{tail}\nLog: {log}")
            if code == exits.PREEMPTED:
                self.view.end(name, "was preempted with its checkpoint saved; resuming")
                self.signals.wait(self.pause)
                continue
            failures += 1
            if full := words.full(tail):
                self.view.end(name, f"failed: {full}")
                raise StageError(
                    name,
                    code,
                    f"{name} failed because a disk is full, which no retry mends. Free some space, or choose "
                    f"another --state, and run the same command again to go on. The end of {log}:\n{tail}",
                )
            if failures > limit:
                self.view.end(name, f"failed with exit code {code}")
                raise StageError(
                    name,
                    code,
                    f"{name} failed with exit code {code}{words.reason(code)} after {failures} attempts "
                    f"(limits.retries {limit}). The end of {log}:\n{tail}",
                )
            wait = min(30.0, self.pause * 2 ** (failures - 1))
            self.view.end(
                name,
                f"failed with exit code {code}{words.reason(code)}; retry {failures} of {limit} in {wait:.0f} s",
            )
            self.signals.wait(wait)

    def _attempt(
        self, plan: Plan, stage: Stage, command: Command, log: Path, left: float | None
    ) -> tuple[int, bool]:
        """One process from start to end. Returns its exit code and whether the deadline ended it."""
        if command.progress:
            command.progress.unlink(missing_ok=True)
        pidfile = self.folders.pidfile(plan.namespace, plan.name, stage.name)
        process = Process(command.argv, command.env, command.cwd, log, pidfile)
        end = None if left is None else time.monotonic() + left
        shown = None
        try:
            while True:
                code = process.poll()
                record = progress.read(command.progress) if command.progress else None
                if record is not None and record != shown:
                    shown = record
                    self.view.update(stage.name, record)
                if code is not None:
                    return code, False
                if self.signals.asked is not None:
                    return self._stop(process, stage), False
                if end is not None and time.monotonic() > end:
                    code = self._stop(process, stage)
                    return code, code != exits.DONE
                self.signals.wait(0.1)
        finally:
            if process.poll() is None:
                process.stop(_grace(stage))

    def _stop(self, process: Process, stage: Stage) -> int:
        """SIGTERM and the pod's grace period; a second signal cuts it short."""
        grace = _grace(stage)
        self.view.note(
            f"{stage.name}: stopping, up to {duration(grace)} to {words.last(stage.name)} (again: at once)"
        )
        process.terminate()
        end = time.monotonic() + grace
        while (code := process.poll()) is None:
            if self.signals.twice or time.monotonic() > end:
                process.kill()
            time.sleep(0.05)
        return code

    def _stop_if_asked(self, stage: str) -> None:
        if self.signals.asked is not None:
            raise StoppedError(
                128 + self.signals.asked, f"stopped before {stage}. Run the same command to go on."
            )

    # -- endpoints ----------------------------------------------------------------------------

    @contextmanager
    def endpoint(
        self,
        plan: Plan,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Iterator[Serving]:
        """Serves a model while the block runs; ready when it is entered.

        The planned gate is asked first, unless `changes` make it another model than planned.

        port:    None takes a free one.
        changes: more keys of the server's configuration that differ from the plan.
        Raises UserError, StageError or StoppedError.
        """
        stage = "serve"
        served = plan.stage(stage)
        home = self.folders.home(plan.namespace, plan.name)
        with locked(home / f"{stage}.lock", f"{plan.kind} {plan.namespace}/{plan.name}"):
            self._end_orphans(plan)
            address.refuse_address(host, port)
            chosen = port or address.free_port(host)
            command = self._materialise(plan, served, {**(changes or {}), "host": host, "port": chosen})
            log = self.folders.log(plan.namespace, plan.name, stage)
            offset = logs.begin(log, 1, command)
            self.view.begin(stage, 1)
            pidfile = self.folders.pidfile(plan.namespace, plan.name, stage)
            process = Process(command.argv, command.env, command.cwd, log, pidfile)
            try:
                url = f"http://{address.reachable(host)}:{chosen}"
                self._until_healthy(served, process, url, log, offset)
                if not changes:
                    self._gate(plan, url)
                name = getattr(served.config, "served_name", plan.name)
                yield Serving(Endpoint(url, name), process, log, offset, self.signals)
            finally:
                if process.poll() is None:
                    process.stop(min(_grace(served), 10.0) if self.signals.asked is None else _grace(served))

    def _gate(self, plan: Plan, url: str) -> None:
        """Runs the planned gate against the server. Raises StageError with what it found."""
        stage = next((s for s in plan.stages if s.name == "gate"), None)
        if stage is not None:
            service = next(m for m in stage.manifests if m["kind"] == "Service")
            said = "the server does not answer as the model it should be"
            self._ask_server(plan, stage, service, url, said)

    def benchmark(self, plan: Plan, serving: Serving) -> str | None:
        """Runs the planned benchmark against a server. Returns its table, None where none is planned."""
        stage = next((s for s in plan.stages if s.name == "bench"), None)
        if stage is None:
            return None
        return self._ask_server(
            plan, stage, plan.after[-1], serving.endpoint.url, "the endpoint could not be measured"
        )

    def _ask_server(self, plan: Plan, stage: Stage, service: Manifest, url: str, failed: str) -> str:
        """Runs a stage that speaks to a planned Service, which is `url` here. Returns what it printed."""
        meta = service["metadata"]
        command = self._materialise(
            plan, stage, hosts={f"http://{meta['name']}.{meta['namespace']}.svc": url}
        )
        log = self.folders.log(plan.namespace, plan.name, stage.name)
        offset = logs.begin(log, 1, command)
        self.view.begin(stage.name, 1)
        begun = time.monotonic()
        code, _ = self._attempt(plan, stage, command, log, None)
        if self.signals.asked is not None:
            self.view.end(stage.name, "stopped")
            raise StoppedError(128 + self.signals.asked, f"stopped in {stage.name}.")
        if code != exits.DONE:
            self.view.end(stage.name, "failed")
            raise StageError(stage.name, code, f"{failed}:\n{logs.tail(log, offset)}")
        self.view.end(stage.name, f"passed in {duration(time.monotonic() - begun)}")
        return logs.tail(log, offset)

    def _until_healthy(self, stage: Stage, process: Process, url: str, log: Path, offset: int) -> None:
        probe = stage.container["startupProbe"]
        budget = float(probe["periodSeconds"] * probe["failureThreshold"])
        begun = time.monotonic()
        while not address.healthy(url + probe["httpGet"]["path"]):
            code = process.poll()
            if code is not None:
                self.view.end(stage.name, f"failed with exit code {code}")
                raise StageError(
                    stage.name,
                    code or exits.RETRY,
                    f"the endpoint ended with exit code {code}{words.reason(code)} before it was ready. "
                    f"The end of {log}:\n{logs.tail(log, offset)}",
                )
            if self.signals.asked is not None:
                self.view.end(stage.name, "stopped")
                raise StoppedError(128 + self.signals.asked, "stopped before the endpoint was ready.")
            if time.monotonic() - begun > budget:
                self.view.end(stage.name, "not ready in time")
                raise StageError(
                    stage.name,
                    exits.RETRY,
                    f"the endpoint was not ready within {duration(budget)}. The end of {log}:\n"
                    f"{logs.tail(log, offset)}",
                )
            self.signals.wait(0.2)
        self.view.end(stage.name, f"ready in {duration(time.monotonic() - begun)}")


@dataclass(frozen=True)
class Serving:
    """An endpoint that is up."""

    endpoint: Endpoint
    process: Process
    log: Path
    offset: int
    signals: Signals

    def wait(self) -> None:
        """Returns when a signal comes. Raises StageError when the endpoint ends by itself."""
        self.wait_all([self])

    @staticmethod
    def wait_all(serving: Sequence[Serving]) -> None:
        """The same for several endpoints."""
        while not serving[0].signals.wait(0.2):
            for one in serving:
                code = one.process.poll()
                if code is not None:
                    raise StageError(
                        "serve",
                        code or exits.RETRY,
                        f"the endpoint {one.endpoint.model} ended with exit code {code}{words.reason(code)}. "
                        f"The end of {one.log}:\n{logs.tail(one.log, one.offset)}",
                    )


def inputs(stage: Stage, paths: Rewrite) -> dict[str, Any]:
    """Size and time of the local dataset files that a stage reads, by path."""
    found: dict[str, Any] = {}
    dataset = getattr(stage.config, "dataset", None)
    for uri in (*dataset.train, *dataset.validation) if dataset else ():
        path = Path(paths(uri).removeprefix("file://"))
        if uri.startswith("file://"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found[str(path)] = [stat.st_size, stat.st_mtime_ns]
    return found


def _grace(stage: Stage) -> float:
    return float(stage.template["spec"].get("terminationGracePeriodSeconds", 30))
