"""JobSet and Kueue beside a control plane: their own charts and managers, as plain processes.

The chart is rendered by Helm and applied but for what needs a node: no Deployment, and webhooks that
point at the manager's loopback port. The manager acts as the chart's own service account, so the chart's
roles are what is tested, and its admission webhooks are on.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from . import build
from .api import Object
from .control import ControlPlane
from .helm import helm
from .process import Process, free_ports, plain_environment, wait_for

# What a manager outside the cluster has no use for: its pod, the addresses of that pod, and its secrets.
_LEFT_OUT = ("Deployment", "Service", "APIService", "Secret")


def jobset(plane: ControlPlane) -> None:
    """Installs JobSet and returns once it admits and reconciles."""
    hook, health = free_ports(2)
    folder = _folder(plane, "jobset")
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        **_manager(folder, hook, health),
    }
    _install(plane, "jobset", config, hook, health)


def kueue(plane: ControlPlane, frameworks: Sequence[str] = ("batch/job", "jobset.x-k8s.io/jobset")) -> None:
    """Installs Kueue for the given kinds of job and returns once it admits and reconciles.

    Other kinds stay out: the default set also holds every Pod and Deployment at admission.
    """
    hook, health = free_ports(2)
    folder = _folder(plane, "kueue")
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "featureGates": {"VisibilityOnDemand": False},
        "clientConnection": {"qps": 50, "burst": 100},
        "integrations": {"frameworks": list(frameworks)},
        **_manager(folder, hook, health),
    }
    # Kueue reads its metrics certificate from this path and no other, even with metrics off.
    etc = folder / "etc" / "kueue" / "metrics" / "certs"
    etc.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(folder / name, etc)
    _install(plane, "kueue", config, hook, health, wrapper=_with_etc(folder / "etc"))


def _install(
    plane: ControlPlane, name: str, config: Object, hook: int, health: int, wrapper: Sequence[str | Path] = ()
) -> None:
    folder, namespace = plane.folder / name, f"{name}-system"
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    rendered = _rendered(name, namespace, config, folder)
    deployment = next(one for one in rendered if one["kind"] == "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    objects = [_without_pod(one, hook, plane.ca) for one in rendered if one["kind"] not in _LEFT_OUT]
    hooks = [one for one in objects if one["kind"].endswith("WebhookConfiguration")]
    crds = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    plane.apply(*(one for one in objects if one not in hooks))
    plane.established(one["metadata"]["name"] for one in crds)
    token = plane.service_account_token(namespace, account)
    kubeconfig = plane.write_kubeconfig(name, plane.url, token, namespace)
    command = [*wrapper, build.binary(name), f"--config={file}", f"--kubeconfig={kubeconfig}"]
    process = Process(name, command, plane.logs / f"{name}.log", environment=plain_environment())
    plane.run(process)
    wait_for(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), f"the manager of {name}", [process])
    plane.apply(*hooks)  # last: a webhook without its server refuses everything


def _folder(plane: ControlPlane, name: str) -> Path:
    """The add-on's folder, with the certificate of its webhook server under the names it looks for."""
    folder = plane.folder / name
    folder.mkdir()
    pair = plane.authority.issue(f"{name}-webhook", "webhook", hosts=["127.0.0.1", "localhost"])
    shutil.copy(pair.cert, folder / "tls.crt")
    shutil.copy(pair.key, folder / "tls.key")
    return folder


def _manager(folder: Path, hook: int, health: int) -> Object:
    return {
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": hook, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }


def _rendered(name: str, namespace: str, config: Object, folder: Path) -> list[Object]:
    """The chart's manifests. It is given the manager's config too: which webhooks it has depends on it."""
    values = folder / "values.yaml"
    values.write_text(
        yaml.safe_dump({"managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(config)}})
    )
    chart = build.folder(name) / "chart"
    printed = helm(
        "template", name, chart, f"--namespace={namespace}", "--include-crds", f"--values={values}"
    )
    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # the CRDs are megabytes: libyaml where there is one
    return [one for one in yaml.load_all(printed, Loader=loader) if one]


def _without_pod(found: Object, hook: int, ca: Path) -> Object:
    """Points a manifest's webhooks, also those that convert between versions, at the loopback port."""
    for webhook in found.get("webhooks") or []:
        webhook["clientConfig"] = _client(webhook["clientConfig"], hook, ca)
    conversion = (found.get("spec") or {}).get("conversion") or {}
    if conversion.get("strategy") == "Webhook":
        conversion["webhook"]["clientConfig"] = _client(conversion["webhook"]["clientConfig"], hook, ca)
    return found


def _client(config: Mapping[str, Any], hook: int, ca: Path) -> Object:
    path = config["service"].get("path", "/")
    return {
        "url": f"https://127.0.0.1:{hook}{path}",
        "caBundle": base64.b64encode(ca.read_bytes()).decode(),
    }


def _with_etc(folder: Path) -> list[str | Path]:
    """A wrapper that runs a command with another /etc, in a mount namespace of its own."""
    found = shutil.which("unshare")
    if found is None:
        raise build.UnavailableError(
            "unshare (of util-linux) is not installed, and Kueue runs in a mount namespace"
        )
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    probe = subprocess.run([found, *namespaces, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        raise build.UnavailableError(
            f"Kueue needs a mount namespace, and this machine gives none ({probe.stderr.strip()}): "
            "run the tests as root, or allow unprivileged user namespaces"
        )
    script = 'mount --bind "$0" /etc && exec "$@"'
    return [found, *namespaces, "sh", "-c", script, folder]


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10):
            return True
    except (urllib.error.URLError, OSError):
        return False
