"""A planned container without a node: buildah mounts its image, runc runs it as the pod says.

What a kubelet would take from the pod is taken from it here: command, environment, user, read-only root,
volumes. It shares the host's network, so that a test reaches its ports on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.process import Process, wait_for

from . import images, layout, needs

Object = dict[str, Any]

_PREFIX = f"{layout.CGROUP}-"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KERNEL: tuple[Object, ...] = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {
        "destination": "/dev/shm",
        "type": "tmpfs",
        "source": "shm",
        "options": ["nosuid", "nodev", "mode=1777"],
    },
    {
        "destination": "/sys",
        "type": "sysfs",
        "source": "sysfs",
        "options": ["nosuid", "noexec", "nodev", "ro"],
    },
)


@dataclass
class Container:
    """The one container of a planned pod, from `with` until it is left or has ended.

    tag:    of an image that `images.build` made.
    pod:    the pod template of a plan.
    folder: an empty folder of the test, for scratch volumes and the log.
    maps:   data of the ConfigMaps that the pod names. claims: host folders of its claims.
    binds:  host folders that are mounted read-only besides, by their place in the container.
    """

    tag: str
    pod: Object
    folder: Path
    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    claims: Mapping[str, Path] = field(default_factory=dict)
    binds: Mapping[str, Path] = field(default_factory=dict)

    def __enter__(self) -> Self:
        sweep()
        self.name = f"{_PREFIX}{os.getpid()}-{self.folder.name}"
        (self.folder / "run").mkdir(parents=True)
        (self.folder / "config.json").write_text(json.dumps(self._bundle()))
        # In namespaces of its own, that end with this process: mounts and processes go with them.
        unshare = [needs.command("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = (
            'root=$("$@" mount "$NAME") && mkdir rootfs && mount --bind "$root" rootfs'
            ' && exec "$RUNC" --root run run "$NAME"'
        )
        images.buildah("from", "--pull-never", "--name", self.name, self.tag)
        self.process = Process(
            self.name,
            [*unshare, "sh", "-c", f"cd {self.folder} && {script}", "sh", *images.command()],
            self.folder / "log",
            os.environ | {"NAME": self.name, "RUNC": needs.command("runc")},
        )
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop(signal.SIGKILL)
        _remove(self.name)

    def log(self) -> str:
        """What it printed so far."""
        return self.process.tail(10_000)

    def wait(self, timeout: float) -> int:
        """The exit code, once it has ended by itself."""
        wait_for(
            lambda: not self.process.alive, f"the end of {self.name}; so far:\n{self.log()}", (), timeout
        )
        return self.process.code

    def terminate(self, timeout: float) -> int:
        """Ends it as a kubelet does, with SIGTERM to its first process; the exit code."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)  # runc, which passes it on
        return self.wait(timeout)

    def _bundle(self) -> Object:
        spec = self.pod["spec"]
        (container,) = spec["containers"]
        image = images.inspect(self.tag)
        security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        user = image.get("User", "").partition(":")
        environment = {"PATH": _PATH, **dict(one.split("=", 1) for one in image.get("Env") or [])}
        environment |= {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
        command = container.get("command") or [*(image.get("Entrypoint") or []), *(image.get("Cmd") or [])]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {
                    "uid": int(security.get("runAsUser", user[0] or 0)),
                    "gid": int(security.get("runAsGroup", user[2] or 0)),
                },
                "args": [*command, *container.get("args", [])],
                "env": [f"{key}={value}" for key, value in environment.items()],
                "cwd": image.get("WorkingDir") or "/",
                "noNewPrivileges": not security.get("allowPrivilegeEscalation", False),
                "capabilities": {},
            },
            "root": {"path": "rootfs", "readonly": bool(security.get("readOnlyRootFilesystem"))},
            "mounts": [*_KERNEL, *self._mounts(spec, container, security.get("fsGroup", 0))],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
                "cgroupsPath": f"/{self.name}",
            },
        }

    def _mounts(self, spec: Object, container: Object, group: int) -> list[Object]:
        volumes = {one["name"]: one for one in spec.get("volumes", [])}
        made = []
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                source = self._folder(mount["name"], group)
                for name, text in self.maps[volume["configMap"]["name"]].items():
                    (source / name).write_text(text)
            elif "persistentVolumeClaim" in volume:
                source = self.claims[volume["persistentVolumeClaim"]["claimName"]]
            else:
                source = self._folder(mount["name"], group)
            made.append(_bind(source, mount["mountPath"], mount.get("readOnly", False)))
        return [*made, *(_bind(source, place, True) for place, source in self.binds.items())]

    def _folder(self, name: str, group: int) -> Path:
        """An empty volume, which the pod's group may write."""
        path = self.folder / "volumes" / name
        path.mkdir(parents=True)
        shutil.chown(path, group=group)
        path.chmod(0o2775)
        return path


def sweep() -> None:
    """Removes what is left of containers whose test run was killed; their processes ended with it."""
    for name in images.buildah("containers", "--format", "{{.ContainerName}}").split():
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and not Path("/proc", owner).exists():
            _remove(name)


def _remove(name: str) -> None:
    images.buildah("rm", name)
    for group in [layout.CGROUPS / name, *layout.CGROUPS.glob(f"*/{name}")]:
        wait_for(partial(_removed, group), f"the end of {group}")


def _bind(source: Path, place: str, read_only: bool) -> Object:
    options: Sequence[str] = ["rbind", "ro" if read_only else "rw"]
    return {"destination": place, "type": "bind", "source": str(source.resolve()), "options": options}


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
