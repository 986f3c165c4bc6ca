"""A planned pod as a process: volumes as folders, mount paths rewritten."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tunewright_workloads
from tunewright_operator.local import shadows
from tunewright_operator.plan.stage import Manifest, Stage
from tunewright_workloads.contract.faults import Fault, UserError, show

MACHINE_OWN = ("/tmp", "/dev/shm")
"""Mounts that every machine has at the same path: never rewritten, because a user's own
`file:///tmp/...` must stay what it is."""

MACHINE_ENV = ("HOME", "HF_HOME", "XDG_CACHE_HOME")
"""Variables that a pod needs and a user has: here are logins and downloads that a pod lacks."""


@dataclass(frozen=True)
class Command:
    """What a process needs. Paths are those of this machine."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    progress: Path | None
    paths: Rewrite


class Rewrite:
    """Replaces mount paths by folders, at path boundaries only.

    `/mnt/claims/a` is rewritten in `file:///mnt/claims/a/x` and `--out=/mnt/claims/a`, and left
    alone in `/mnt/claims/ab`, `/data/mnt/claims/a` and `gs://mnt/claims/a`.

    hosts: URLs of planned Services -> where they are on this machine.
    """

    def __init__(self, folders: Mapping[str, Path], hosts: Mapping[str, str] | None = None) -> None:
        self.hosts = dict(hosts or {})
        self.folders = {mount.rstrip("/"): folder for mount, folder in folders.items()}
        mounts = sorted(self.folders, key=len, reverse=True)
        names = "|".join(re.escape(m) for m in mounts) or r"(?!)"
        self._pattern = re.compile(rf"(?:(?<=file://)|(?<![\w./~-]))(?:{names})(?![\w.~-])")

    def __call__(self, text: str) -> str:
        for planned, here in self.hosts.items():
            text = text.replace(planned, here)
        return self._pattern.sub(lambda match: str(self.folders[match.group()]), text)

    def data(self, value: Any) -> Any:
        """Every string inside plain data."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self.data(item) for item in value]
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in value.items()}
        return value


def materialise(
    stage: Stage,
    *,
    home: Path,
    claims: Path,
    cache: Path,
    namespace: str,
    changes: Mapping[str, Any] | None = None,
    hosts: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Command:
    """Writes the pod's files below `home` and returns the command of its container.

    home:    folder of this pod; emptyDirs stay between runs, so that a resumed stage finds its
             downloads.
    claims:  folder with one folder a PersistentVolumeClaim, shared by all jobs.
    cache:   folder of the compile cache, shared by all jobs.
    changes: keys of the stage's configuration that differ on this machine (host and port).
    hosts:   URLs of planned Services -> where they are on this machine.

    Init containers are left out: the relay speaks to an API server, and the runner reads the file
    itself. Raises UserError for what only a cluster has.
    """
    environ = os.environ if environ is None else environ
    shadows.refuse(environ)
    spec, container = stage.template["spec"], stage.container
    folders = _volumes(stage, spec, home, claims)
    mounts = {
        mount["mountPath"]: folders[mount["name"]] / mount.get("subPath", "")
        for mount in container.get("volumeMounts", [])
        if mount["mountPath"] not in MACHINE_OWN
    }
    for folder in mounts.values():
        folder.mkdir(parents=True, exist_ok=True)
    paths = Rewrite(mounts, hosts)
    for volume in spec.get("volumes", []):
        if "configMap" in volume:
            data = stage.configmaps[volume["configMap"]["name"]]
            _write(folders[volume["name"]], data, paths, changes or {})
    argv = [paths(part) for part in [*container["command"], *container.get("args", [])]]
    if Path(argv[0]).name in ("python", "python3"):
        argv[0] = _torch_python(environ) if "tunewright_workloads.gpu" in argv else sys.executable
    planned = _environment(container.get("env", []), stage, namespace, paths, environ)
    env = {**environ, "PYTHONUNBUFFERED": "1", **planned}
    if argv[0] not in (sys.executable, container["command"][0]):
        here = str(Path(tunewright_workloads.__file__).parents[1])  # another interpreter, the same workloads
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [here, env.get("PYTHONPATH")]))
    if "JAX_COMPILATION_CACHE_DIR" not in env:
        env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        env.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        env.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    progress = getattr(stage.config, "progress", None)
    return Command(argv, env, home, Path(paths(progress)) if progress else None, paths)


def _torch_python(environ: Mapping[str, str]) -> str:
    """The interpreter that has PyTorch: a laptop's environment for JAX does without it."""
    named = environ.get("TUNEWRIGHT_TORCH_PYTHON")
    if named:
        if not Path(named).is_file():
            raise UserError(Fault("TUNEWRIGHT_TORCH_PYTHON", "names no file", show(named)))
        return named
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            Fault(
                "the training program",
                "needs PyTorch, which this environment lacks",
                None,
                "Run `make install-gpu`, then set TUNEWRIGHT_TORCH_PYTHON=.venv-gpu/bin/python.",
            )
        )
    return sys.executable


def _volumes(stage: Stage, spec: Manifest, home: Path, claims: Path) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for volume in spec.get("volumes", []):
        name = volume["name"]
        if "persistentVolumeClaim" in volume:
            folders[name] = claims / volume["persistentVolumeClaim"]["claimName"]
        elif {"emptyDir", "configMap", "ephemeral"} & volume.keys():
            folders[name] = home / "volumes" / name
        elif "projected" not in volume:  # a token for the API server: there is none here
            kind = next(key for key in volume if key != "name")
            raise UserError(
                Fault(f"stage {stage.name}", f"volume {name} is a {kind}, which only a cluster has")
            )
    return folders


def _write(folder: Path, data: dict[str, str], paths: Rewrite, changes: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in data.items():
        if name.endswith(".json"):
            content = {**paths.data(json.loads(text)), **changes}
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        else:
            text = paths(text)
        temporary = folder / f".{name}.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)


def _environment(
    planned: list[Manifest], stage: Stage, namespace: str, paths: Rewrite, environ: Mapping[str, str]
) -> dict[str, str]:
    env: dict[str, str] = {}
    faults: list[Fault] = []
    fields = {"metadata.namespace": namespace, "metadata.name": stage.workload["metadata"]["name"]}
    for item in planned:
        name, source = item["name"], item.get("valueFrom", {})
        if name in MACHINE_ENV:
            continue
        if "value" in item:
            env[name] = paths(str(item["value"]))
        elif source.get("fieldRef", {}).get("fieldPath") in fields:
            env[name] = fields[source["fieldRef"]["fieldPath"]]
        elif source.get("secretKeyRef", {}).get("optional") or source.get("configMapKeyRef", {}).get(
            "optional"
        ):
            continue
        elif name in environ:
            env[name] = environ[name]
        else:
            ref = source.get("secretKeyRef") or source.get("configMapKeyRef") or {}
            what = f"comes from {ref.get('name', 'the cluster')}" + (f"/{ref['key']}" if "key" in ref else "")
            faults.append(
                Fault(
                    f"stage {stage.name}: environment variable {name}",
                    f"{what} in a cluster and must be set in your shell to run on this machine",
                    None,
                    f"Run `export {name}=...` first.",
                )
            )
    if faults:
        raise UserError(faults)
    return env
