"""A Kubernetes control plane as plain processes on loopback: no root, no namespaces, ready in seconds.

etcd and the API server always; the controller manager unless told not to; the scheduler when asked.
There is no kubelet: pods run only as far as the scheduler takes them (see `nodes`).
"""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import tempfile
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from . import build, kubeconfig, pki
from .api import Access, ApiError, Cluster
from .process import Process, ProcessDiedError, free_ports, plain_environment, wait_for

_SERVICES = "10.96.0.0/16"

# Nobody sends heartbeats for nodes that are only objects: a grace period that no test outlives keeps the
# node lifecycle controller (which taints nodes by their conditions) from taking them for dead.
_NODE_GRACE = "24h"

_STARTS = 3


class ControlPlane(Cluster):
    """etcd, an API server and, by choice, its controllers, in a temporary folder.

    A context manager: `close` ends what was started, by process id, and removes the folder. Components
    that fail to start have the last lines of their logs in the error.
    """

    def __init__(
        self, *, controllers: bool = True, scheduler: bool = False, apiserver_flags: Sequence[str] = ()
    ) -> None:
        self._kubebox = build.binary("kubebox")
        self._controllers = controllers
        self._scheduler = scheduler
        self._apiserver_flags = list(apiserver_flags)
        self._components: dict[str, Process] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="tunewright-"))
        self.logs = self.folder / "log"
        self.logs.mkdir()
        self.authority = pki.Authority(self.folder / "pki")
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            print(self.tails(), file=sys.stderr)
        self.close()

    @property
    def controllers(self) -> bool:
        return self._controllers

    @property
    def watched(self) -> Sequence[Process]:
        return list(self._components.values())

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each running component, by name."""
        return {name: process.pid for name, process in self._components.items() if process.alive}

    def run(self, process: Process) -> None:
        """Starts a further component, which from now on belongs to this control plane."""
        self._components[process.name] = process
        process.start()

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends one component for good."""
        self._components.pop(name).stop(how)

    def restart_apiserver(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends the API server and brings it back on the same port and data; every watch is cut.

        A crash unless told otherwise: on SIGTERM the server gives open watches a minute to go away. It knows
        no history from before: a watch that asks for it is answered 410 Gone.
        """
        apiserver = self._components["kube-apiserver"]
        apiserver.stop(how, grace=120)
        apiserver.start()
        self._await_api()

    def tails(self, lines: int = 15) -> str:
        """The last lines of every component's log, for whoever has to find out what went wrong."""
        return "\n".join(f"--- {name}\n{process.tail(lines)}" for name, process in self._components.items())

    def close(self) -> None:
        """Ends every process and removes the folder. Their data is thrown away, so nothing waits for them."""
        for process in reversed(self._components.values()):
            process.stop(signal.SIGKILL)
        self._components.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        certs = self._certificates()
        for attempt in range(1, _STARTS + 1):
            client, peer, port = free_ports(3)
            try:
                self._start_on(client, peer, port, certs)
                return
            except ProcessDiedError as problem:
                # Between finding a port free and binding it, another test run may have taken it.
                if "address already in use" not in str(problem) or attempt == _STARTS:
                    raise
            for name in reversed(list(self._components)):
                self.end(name, signal.SIGKILL)
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def _start_on(self, client: int, peer: int, port: int, certs: dict[str, pki.Pair]) -> None:
        self._component(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",  # the data does not outlive the tests: no need to wait for the disk
            "--log-level=warn",
        )
        self._component(
            "kube-apiserver",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            # Endpoints may not be loopback addresses, and nothing here runs in a pod that would need them.
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--client-ca-file={self.authority.pair.cert}",
            f"--tls-cert-file={certs['apiserver'].cert}",
            f"--tls-private-key-file={certs['apiserver'].key}",
            f"--token-auth-file={self._tokens}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._verifies}",
            f"--service-account-signing-key-file={self._signs}",
            f"--service-cluster-ip-range={_SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # Without its controller nobody makes the default service accounts that pods are refused without.
            *([] if self._controllers else ["--disable-admission-plugins=ServiceAccount"]),
            "--allow-privileged=true",
            *self._apiserver_flags,
        )
        url = f"https://127.0.0.1:{port}"
        admin = certs["admin"]
        access = Access(url, self.authority.pair.cert, admin.cert, admin.key, self._admin_token)
        config = self.write_kubeconfig("admin", url, admin)
        super().__init__(access, config, [self._kubebox, "kubectl"], self.folder / "kubectl")
        self._await_api()
        if self._controllers:
            self._component(
                "kube-controller-manager",
                f"--kubeconfig={self.write_kubeconfig('kcm', url, certs['kcm'])}",
                "--secure-port=0",
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={self._signs}",
                f"--root-ca-file={self.authority.pair.cert}",
                f"--cluster-signing-cert-file={self.authority.pair.cert}",
                f"--cluster-signing-key-file={self.authority.pair.key}",
                f"--node-monitor-grace-period={_NODE_GRACE}",
                # The default of 20 requests a second, sized for a shared cluster, makes tests wait seconds.
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            )
            self.wait_for(
                lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"),
                "the first service account of the controller manager",
            )
        if self._scheduler:
            self._component(
                "kube-scheduler",
                f"--kubeconfig={self.write_kubeconfig('scheduler', url, certs['scheduler'])}",
                "--secure-port=0",
                "--leader-elect=false",
            )

    def _component(self, name: str, *flags: str) -> None:
        self.run(
            Process(
                name,
                [self._kubebox, name, *flags],
                self.logs / f"{name}.log",
                environment=plain_environment(),
            )
        )

    def _await_api(self) -> None:
        wait_for(self._ready, "the API server", self.watched)

    def _ready(self) -> bool:
        try:
            self.request("GET", "/readyz", timeout=10)
        except (ApiError, urllib.error.URLError, OSError):
            return False
        return True

    def _certificates(self) -> dict[str, pki.Pair]:
        folder = self.folder / "pki"
        self._signs, self._verifies = pki.signing_key(folder)
        self._admin_token = secrets.token_urlsafe(24)
        self._tokens = folder / "tokens.csv"
        self._tokens.touch(mode=0o600)
        self._tokens.write_text(f'{self._admin_token},admin,admin,"system:masters"\n')
        issue = self.authority.issue
        return {
            "apiserver": issue(
                "apiserver",
                "kube-apiserver",
                hosts=[
                    "127.0.0.1",
                    "localhost",
                    "kubernetes",
                    "kubernetes.default",
                    "kubernetes.default.svc",
                ],
            ),
            "admin": issue("admin", "admin", group="system:masters"),
            "kcm": issue("kcm", "system:kube-controller-manager"),
            "scheduler": issue("scheduler", "system:kube-scheduler"),
        }

    def write_kubeconfig(
        self, name: str, url: str, who: pki.Pair | str, namespace: str | None = None
    ) -> Path:
        """A kubeconfig in the control plane's folder, for a client certificate or a bearer token."""
        return kubeconfig.write(
            self.folder / f"{name}.kubeconfig", url, self.authority.pair.cert, who, namespace
        )
