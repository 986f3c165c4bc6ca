"""A ServeEndpoint's planned children as processes on loopback: what kubelet and kube-proxy would make of them.

Deployments and Jobs become processes of their planned pods (command, environment, configuration,
probes, preStop, grace period), Services become TCP forwarders to the ready pods that they select.
What is there and in which order is the operator's own `plan` and `observe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support import objects
from support.serving import CACHE, ROOT, free_port
from tunewright_operator import plan as planner
from tunewright_operator.api import ServeEndpoint
from tunewright_operator.local.pod import materialise
from tunewright_operator.local.process import Process
from tunewright_operator.observe import endpoint as judge
from tunewright_operator.observe.endpoint import REVISION, Facts, Source, Verdict
from tunewright_operator.plan.probes import url as public_url
from tunewright_operator.plan.stage import Manifest, Plan, Stage

TICK = 0.2
"""Seconds between two looks; so late a Service hears of a pod that ends."""


class Forwarder:
    """A Service: each new connection goes to one of the pods that are ready now; open ones stay where they are."""

    def __init__(self, name: str, selector: dict[str, str]) -> None:
        self.name, self.selector = name, selector
        self.ports: list[int] = []
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self._server = self._loop.run_until_complete(start)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self.ports:
                return  # nobody is ready: the connection is refused
            up = await asyncio.open_connection("127.0.0.1", random.choice(self.ports))
            await asyncio.gather(_pipe(reader, up[1]), _pipe(up[0], writer))
        except (OSError, asyncio.CancelledError):  # the pod has gone, or the Service has
            pass
        finally:
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                self._loop.run_until_complete(task)
        self._loop.close()


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            target.write_eof() if target.can_write_eof() else target.close()


@dataclass
class Server:
    """One pod of a Deployment."""

    name: str
    stage: Stage
    process: Process
    port: int
    log: Path
    begun: float = field(default_factory=time.monotonic)
    ready: bool = False
    healthy_once: bool = False
    missed: int = 0
    ending: threading.Thread | None = None
    code: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.stage.template["metadata"]["labels"]
        return found

    def look(self) -> None:
        """Runs the planned probes. Raises AssertionError when the startup probe's budget is spent."""
        if self.code is None:
            self.code = self.process.poll()
        probe = self.stage.container["readinessProbe" if self.healthy_once else "startupProbe"]
        if self.code is None and _answers(self.port, probe["httpGet"]["path"]):
            self.ready, self.missed = True, 0
        else:
            self.missed += 1
            # One probe that a busy server misses takes no pod out of a Service.
            self.ready &= self.code is None and self.missed < probe["failureThreshold"]
        self.healthy_once |= self.ready
        budget = probe["periodSeconds"] * probe["failureThreshold"]
        assert self.healthy_once or time.monotonic() - self.begun < budget, self.log.read_text()

    def end(self) -> None:
        """As a kubelet does: preStop, SIGTERM, the rest of the grace period, SIGKILL."""
        if self.ending:
            return
        pause = self.stage.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace = self.stage.template["spec"]["terminationGracePeriodSeconds"]

        def run() -> None:
            if self.process.poll() is None and self.healthy_once:
                time.sleep(pause)
            self.code = self.process.stop(grace - pause)

        self.ending = threading.Thread(target=run, daemon=True)
        self.ending.start()

    def slim(self) -> dict[str, Any]:
        """As the operator's cache holds it."""
        built = objects.Pod.of(self.name, stage="serve")
        if self.code is not None and self.ending is None:
            last = {"exitCode": self.code, "message": self.log.read_text()[-2000:]}
            state = {"name": "serve", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            built = built._with(
                status__phase="Running",
                status__containerStatuses=[{**state, "lastState": {"terminated": last}}],
            )
        else:
            built = built.running()
        if self.ready:
            built = built._with(status__conditions=[{"type": "Ready", "status": "True"}])
        if self.ending:
            built = built._with(metadata__deletionTimestamp=objects.stamp(0))
        built.body["metadata"]["labels"] |= self.labels
        return built.slim


@dataclass
class Task:
    """A Job: one process after the other, until it is done or may not be tried again."""

    stage: Stage
    start: Callable[[int], tuple[Process, Path]]
    attempts: int = 0
    state: str = "running"
    code: int | None = None

    def __post_init__(self) -> None:
        self.process, self.log = self.start(0)

    def look(self) -> None:
        code = self.process.poll()
        if self.state != "running" or code is None:
            return
        self.code = code
        job = self.stage.workload["spec"]
        final = [v for r in job["podFailurePolicy"]["rules"] if r["action"] == "FailJob"
                 for v in r.get("onExitCodes", {}).get("values", [])]  # fmt: skip
        if code == 0:
            self.state = "complete"
        elif code in final or self.attempts >= job["backoffLimit"]:
            self.state = "failed"
        else:
            self.attempts += 1
            self.process, self.log = self.start(self.attempts)

    def slim(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The Job and its pod."""
        labels = self.stage.workload["metadata"]["labels"]
        job, pod = objects.Job.of(self.stage.name), objects.Pod.of(f"{self.stage.name}-x", self.stage.name)
        if self.state == "running":
            pod = pod.running()
        elif self.state == "complete":
            job, pod = job.complete(), pod.succeeded()
        else:
            assert self.code is not None
            job = job.failed("PodFailurePolicy")
            pod = pod.failed(self.code, message=self.log.read_text()[-4000:])
        for one in (job, pod):
            one.body["metadata"]["labels"] |= labels
        return job.slim, pod.slim


class Processes:
    """One endpoint, from `spec` to the status that its processes earn.

    claims: one folder a PersistentVolumeClaim. before_move: called once before the public Service is led
    from one revision to another.
    """

    def __init__(self, work: Path, claims: Path, environ: dict[str, str] | None = None) -> None:
        self.work, self.claims = work, claims
        path = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "workloads")])
        self.environ = {**os.environ, "PYTHONPATH": path, **(environ or {})}
        self.deployments: dict[str, tuple[Stage, list[Server]]] = {}
        self.tasks: dict[str, Task] = {}
        self.services: dict[str, Forwarder] = {}
        self.ended: list[Server] = []
        self.status: dict[str, Any] = {}
        self.before_move: Callable[[], None] = lambda: None
        self._numbers = itertools.count()

    # -- what a cluster does ------------------------------------------------------------------

    def _process(self, plan: Plan, stage: Stage, name: str, changes: dict[str, Any]) -> tuple[Process, Path]:
        home = self.work / name
        command = materialise(
            stage, home=home, claims=self.claims, cache=CACHE, namespace=plan.namespace, changes=changes,
            hosts={f"http://{n}.{plan.namespace}.svc": s.url for n, s in self.services.items()},
            environ=self.environ,
        )  # fmt: skip
        log = home / "log"
        return Process(command.argv, command.env, command.cwd, log, home / "pid"), log

    def _server(self, plan: Plan, stage: Stage) -> Server:
        port, name = free_port(), f"{stage.workload['metadata']['name']}-{next(self._numbers)}"
        process, log = self._process(plan, stage, name, {"host": "127.0.0.1", "port": port})
        return Server(name, stage, process, port, log)

    def _service(self, manifest: Manifest) -> None:
        name, selector = manifest["metadata"]["name"], manifest["spec"]["selector"]
        known = self.services.get(name)
        if known is None:
            self.services[name] = Forwarder(name, selector)
        elif known.selector != selector:
            self.before_move()
            known.selector = selector
        self._route()

    def _route(self) -> None:
        """What EndpointSlices and kube-proxy do."""
        for service in self.services.values():
            service.ports = [
                s.port for _, servers in self.deployments.values() for s in servers
                if s.ready and s.ending is None and service.selector.items() <= s.labels.items()
            ]  # fmt: skip

    def _delete(self, keep: str) -> None:
        for name, (stage, servers) in list(self.deployments.items()):
            if stage.workload["metadata"]["labels"][REVISION] != keep:
                for server in servers:
                    server.end()
                self.ended += servers
                del self.deployments[name]
        for name, task in list(self.tasks.items()):
            if task.stage.workload["metadata"]["labels"][REVISION] != keep:
                task.process.kill()
                del self.tasks[name]
        for name, service in list(self.services.items()):
            if service.selector.get(REVISION) not in (None, keep):
                self.services.pop(name).close()

    # -- what the operator does ---------------------------------------------------------------

    def lead(self, resource: ServeEndpoint, digest: str, seconds: float = 400) -> dict[str, Any]:
        """Reconciles until the endpoint is Ready or Failed. Returns its status."""
        made = planner.endpoint(resource, uri=resource.spec.model.uri, digest=digest)
        end = time.monotonic() + seconds
        while True:
            verdict = self._step(resource, made, digest)
            if self.status["phase"] in ("Ready", "Failed") and (
                verdict.sweep or self.status["phase"] == "Failed"
            ):
                return self.status
            assert time.monotonic() < end, (self.status, [s.log.read_text()[-3000:] for s in self.servers()])
            time.sleep(TICK)

    def _step(self, resource: ServeEndpoint, made: Plan, digest: str) -> Verdict:
        for server in self.servers():
            server.look()
        for task in self.tasks.values():
            task.look()
        self._route()
        verdict = judge.observe(
            {"name": made.name, "generation": 1}, resource.spec, self.status,
            self._facts(resource, made, digest), datetime.now(UTC),
        )  # fmt: skip
        self.status = verdict.status
        if "serve" in verdict.want:
            stage = made.stage("serve")
            name = stage.workload["metadata"]["name"]
            if name not in self.deployments:
                replicas = range(stage.workload["spec"]["replicas"])
                self.deployments[name] = (stage, [self._server(made, stage) for _ in replicas])
        if "gate" in verdict.want:
            stage = made.stage("gate")
            name = stage.workload["metadata"]["name"]
            if name not in self.tasks:
                for manifest in stage.manifests:
                    if manifest["kind"] == "Service":
                        self._service(manifest)
                self.tasks[name] = Task(stage, lambda n: self._process(made, stage, f"{name}-{n}", {}))
        if "after" in verdict.want:
            for manifest in made.after:
                if manifest["kind"] == "Service":
                    self._service(manifest)
        if verdict.sweep:
            self._delete(made.stage("serve").workload["metadata"]["labels"][REVISION])
        return verdict

    def _facts(self, resource: ServeEndpoint, made: Plan, digest: str) -> Facts:
        revision = made.stage("serve").workload["metadata"]["labels"][REVISION]
        deployments = []
        for name, (stage, servers) in self.deployments.items():
            ready, wanted = sum(s.ready for s in servers), len(servers)
            deployments.append({
                "kind": "Deployment",
                "metadata": {"name": name, "uid": name, "generation": 1,
                             "labels": stage.workload["metadata"]["labels"]},
                "spec": {"replicas": wanted},
                "status": {"observedGeneration": 1, "replicas": wanted, "updatedReplicas": wanted,
                           "readyReplicas": ready, "availableReplicas": ready},
            })  # fmt: skip
        pods = [s.slim() for s in self.servers()]
        gate = None
        for task in self.tasks.values():
            job, pod = task.slim()
            pods.append(pod)
            if task.stage.workload["metadata"]["labels"][REVISION] == revision:
                gate = job
        public = self.services.get(made.name)
        return Facts(
            source=Source(True, resource.spec.model.uri, digest), revision=revision, deployments=deployments,
            pods=pods, gate=gate, exposed=public is not None,
            pointed=public.selector.get(REVISION) if public else None,
            url=public_url(made.name, made.namespace), name=resource.served_name,
        )  # fmt: skip

    def servers(self) -> list[Server]:
        """The pods of every Deployment that is there."""
        return [s for _, servers in self.deployments.values() for s in servers]

    def close(self) -> None:
        """Ends every process that was started."""
        for service in self.services.values():
            service.close()
        for task in self.tasks.values():
            if task.process.poll() is None:
                task.process.stop(5)
        for server in [*self.servers(), *self.ended]:
            if server.process.poll() is None:
                server.process.stop(30)


def _answers(port: int, path: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False
