"""The first process of the box: sets its namespaces up, starts the components, then becomes the reaper.

Run by `host` in new mount, network and process namespaces, so that killing this one process ends
everything that was ever started here.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
from collections.abc import Callable
from pathlib import Path

from tests.cluster import build
from tests.cluster.api import Access, ApiError, Cluster
from tests.cluster.process import Process, plain_environment, wait_for

from . import layout, needs

# kubelet, containerd and the network plugins use places in these whatever their configuration says.
_COVERED = ("var", "etc")


def main() -> None:
    """Brings the components up; does not return."""
    folder = layout.folder()
    _mounts(folder)
    _network()
    components = _components(folder)
    (folder / "pids.json").write_text(json.dumps({name: one.pid for name, one in components.items()}))
    pause = build.binary("pause")
    os.execv(pause, [str(pause)])


def _mounts(folder: Path) -> None:
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "tmpfs", "box", "/run")
    for name in _COVERED:
        upper, work = folder / "box" / name, folder / "box" / f"{name}.work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "box", "-o", options, f"/{name}")


def _network() -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", layout.BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{layout.NODE_ADDRESS}/24", "dev", layout.BRIDGE)
    _run("ip", "link", "set", layout.BRIDGE, "up")
    # A process of the box needs some route to a service before kube-proxy's rules get to see its packets.
    _run("ip", "route", "add", layout.SERVICES, "dev", layout.BRIDGE)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if bridged.exists():  # the kernel may have it as a module that is not loaded, and not need it
        bridged.write_text("1")


def _components(folder: Path) -> dict[str, Process]:
    kubebox, pki = build.binary("kubebox"), folder / "pki"
    started: dict[str, Process] = {}
    shim = build.folder("containerd")
    environment = plain_environment(PATH=f"{shim}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin")

    def start(name: str, *command: str | Path) -> None:
        started[name] = Process(name, list(command), folder / "log" / f"{name}.log", environment)
        started[name].start()

    start("containerd", shim / "containerd", "--config", folder / "containerd" / "config.toml")
    client = f"http://127.0.0.1:{layout.ETCD_PORT}"
    peer = f"http://127.0.0.1:{layout.ETCD_PEER_PORT}"
    start(
        "etcd",
        kubebox,
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    start(
        "kube-apiserver",
        kubebox,
        "kube-apiserver",
        f"--bind-address={layout.NODE_ADDRESS}",
        f"--advertise-address={layout.NODE_ADDRESS}",
        f"--secure-port={layout.API_PORT}",
        f"--etcd-servers={client}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-cluster-ip-range={layout.SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        "--enable-aggregator-routing=true",
    )
    wait_for(_ready(folder), "the API server", started.values())
    kcm, scheduler = folder / "kcm.kubeconfig", folder / "scheduler.kubeconfig"
    start(
        "kube-controller-manager",
        kubebox,
        "kube-controller-manager",
        f"--kubeconfig={kcm}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )
    start(
        "kube-scheduler",
        kubebox,
        "kube-scheduler",
        f"--kubeconfig={scheduler}",
        "--secure-port=0",
        "--leader-elect=false",
    )
    start(
        "kubelet",
        kubebox,
        "kubelet",
        f"--config={folder / 'kubelet.yaml'}",
        f"--kubeconfig={folder / 'node.kubeconfig'}",
        f"--hostname-override={layout.NODE}",
        f"--node-ip={layout.NODE_ADDRESS}",
        f"--root-dir={folder / 'kubelet'}",
        f"--cert-dir={folder / 'kubelet' / 'pki'}",
    )
    start("kube-proxy", kubebox, "kube-proxy", f"--config={folder / 'proxy.yaml'}")
    start("dns", build.binary("dns"), "-conf", folder / "Corefile")
    return started


def _ready(folder: Path) -> Callable[[], bool]:
    pki = folder / "pki"
    access = Access(layout.URL, pki / "ca.crt", pki / "admin.crt", pki / "admin.key")
    cluster = Cluster(access, folder / "admin.kubeconfig", [], folder / "kubectl")

    def ready() -> bool:
        try:
            cluster.request("GET", "/readyz", timeout=10)
        except (ApiError, urllib.error.URLError, OSError):
            return False
        return True

    return ready


def _run(name: str, *arguments: str | Path) -> None:
    subprocess.run([needs.command(name), *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
