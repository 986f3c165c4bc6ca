"""The box seen from the host: brings it up, reaches into it, takes it down."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import build, kubeconfig, pki
from tests.cluster.api import Access, ApiError, Cluster, condition
from tests.cluster.helm import helm
from tests.cluster.process import plain_environment, wait_for

from . import config, images, layout, needs

_ROOT = Path(__file__).parents[3]

TOOLS = ("kubebox", "containerd", "dns", "pause")
"""What is built from Go modules for it."""

_STATE = "box.json"
_GONE = ".gone-"


class Box(Cluster):
    """A box that is up: a cluster of one real node."""

    def __init__(self, folder: Path, init: int) -> None:
        self.folder = folder
        self._init = init
        certs = folder / "pki"
        access = Access(layout.URL, certs / "ca.crt", certs / "admin.crt", certs / "admin.key")
        command: list[str | Path] = [build.binary("kubebox"), "kubectl"]
        super().__init__(access, folder / "admin.kubeconfig", command, folder / "kubectl")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            print(tails(), file=sys.stderr)
        down()

    def load(self, archive: Path) -> None:
        """Gives the node an image; pods name it with imagePullPolicy Never or IfNotPresent."""
        self._ctr("images", "import", str(archive))

    def inside(self, *command: str | Path) -> str:
        """Runs a command in the box's namespaces (paths are absolute there) and returns what it printed."""
        enter = [needs.command("nsenter"), "--target", str(self._init), "--mount", "--net", "--pid", "--"]
        done = subprocess.run(
            [*enter, *map(str, command)], capture_output=True, text=True, cwd="/", check=False
        )
        if done.returncode:
            raise RuntimeError(f"`{' '.join(map(str, command))}` failed in the box: {done.stderr.strip()}")
        return done.stdout

    def helm(self, *arguments: str | Path) -> str:
        """Runs helm against the box and returns what it printed."""
        return helm(*arguments, kubeconfig=self.kubeconfig)

    def pid(self, component: str) -> int:
        """The process id of a component, as the box's own namespace counts: for `inside("kill", ...)`."""
        return json.loads((self.folder / "pids.json").read_text())[component]

    def volume(self, name: str, storage_class: str = "local", size: str = "10Gi") -> Path:
        """Makes a local volume that claims of `storage_class` bind to; returns its folder on the host.

        Local volumes take the pod's fsGroup and may be shared by pods, as the host-path kind may not.
        """
        path = self.folder / "volumes" / name
        path.mkdir(parents=True)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [layout.NODE]}
        self.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": storage_class},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": storage_class,
                    "local": {"path": str(path)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
            },
        )
        return path

    def _ctr(self, *arguments: str) -> str:
        return _ctr(self.folder, *arguments)


def up(archives: Sequence[Path] = ()) -> Box:
    """Brings a box up, with the base image and `archives` loaded; one that is up already is taken down.

    Raises UnavailableError when the machine lacks something; on any other failure the box is taken down
    and the error ends with what its components said last.
    """
    needs.check()
    for tool in TOOLS:
        build.folder(tool)
    loaded = [images.pause(), images.base(), *archives]
    down()
    folder = layout.folder()
    if folder.exists() and any(folder.iterdir()) and not (folder / _STATE).exists():
        raise FileExistsError(f"{folder} is not empty and no box of ours: remove it, or set TUNEWRIGHT_BOX")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # pods that are not root reach their volumes through it
    try:
        return _up(folder, loaded)
    except BaseException:
        print(tails(), file=sys.stderr)
        down()
        raise


@contextlib.contextmanager
def alone(wait: bool = True) -> Iterator[None]:
    """Keeps other test runs of this machine from taking the box down. Waits for the one that has it, or
    raises RuntimeError."""
    # Beside the folder and not in it, which `up` has to find empty or its own.
    with layout.folder().with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise RuntimeError("a test run has the box: end that run first") from None
            print("another test run has the box: waiting for its end", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def attach() -> Box:
    """The box that is up now, whoever brought it up."""
    state = _state()
    if state is None:
        raise RuntimeError("no box is up: `python -m tests.e2e.box up` brings one up")
    return Box(layout.folder(), state["init"])


def down() -> None:
    """Ends the box, if one is up, and removes what it made; its logs stay until the next `up`."""
    folder = layout.folder()
    if not (folder / _STATE).exists():
        return
    state = _state()
    if state is not None:
        # The kernel ends the first process inside with the one that made it, and with that all the others.
        os.kill(state["outer"], signal.SIGKILL)
        wait_for(lambda: _started(state["init"]) is None, "the end of the box's processes")
        with contextlib.suppress(ChildProcessError):  # when another process than this one started it
            os.waitpid(state["outer"], 0)
    # The kernel takes a dead network namespace apart in its own time; the next box may not wait for it.
    subprocess.run(
        [needs.command("ip"), "link", "delete", layout.UPLINK], stderr=subprocess.DEVNULL, check=False
    )
    # In every hierarchy: runc makes one also where nothing is limited.
    for group in [layout.CGROUPS / layout.CGROUP, *layout.CGROUPS.glob(f"*/{layout.CGROUP}")]:
        wait_for(partial(_remove_cgroup, group), f"the end of {group}")
    _discard([entry for entry in folder.iterdir() if entry.name not in ("log", _STATE)])


def tails(lines: int = 15) -> str:
    """The last lines of every component's log."""
    logs = sorted((layout.folder() / "log").glob("*.log"))
    return "\n".join(
        f"--- {log.stem}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs
    )


def _up(folder: Path, archives: Sequence[Path]) -> Box:
    (folder / _STATE).write_text("{}")  # from here on `down` knows the folder as ours
    shutil.rmtree(folder / "log", ignore_errors=True)
    config.write(folder)
    _certificates(folder)
    _make_cgroups()
    outer = _start(folder)
    _remember(folder, outer, outer.pid)  # at once: whatever happens next, `down` finds it
    init = _first_child(outer)
    _remember(folder, outer, init)
    _connect(init)
    box = Box(folder, init)

    def waits(ready: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            if outer.poll() is not None:
                raise RuntimeError(f"the box ended by itself while it was to bring up {what}")
            return ready()

        wait_for(checked, what)

    waits(lambda: _answers(folder), "containerd")
    for archive in archives:
        box.load(archive)
    waits(lambda: _node_ready(box), "the node")
    waits(
        lambda: box.exists("/api/v1/namespaces/default/serviceaccounts/default"),
        "the first service account",
    )
    return box


def _discard(entries: Sequence[Path]) -> None:
    """Moves files out of the way at once, and has them deleted behind us.

    Unpacked images are ten thousands of small files, for which a slow disk takes half a minute.
    """
    away = layout.folder() / f"{_GONE}{time.time_ns()}"
    away.mkdir()
    for entry in entries:
        entry.rename(away / entry.name)
    subprocess.Popen(
        ["rm", "-rf", *map(str, layout.folder().glob(f"{_GONE}*"))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _certificates(folder: Path) -> None:
    authority = pki.Authority(folder / "pki")
    pki.signing_key(folder / "pki")
    service = layout.SERVICES.removesuffix(".0/16") + ".1"
    authority.issue(
        "apiserver",
        "kube-apiserver",
        hosts=[
            *(layout.NODE_ADDRESS, service, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default"),
            *("kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
        ],
    )
    authority.issue("kubelet", layout.NODE, hosts=[layout.NODE_ADDRESS, layout.NODE])
    authority.issue("kubelet-client", "kube-apiserver", group="system:masters")
    authority.issue("front-proxy", "front-proxy")
    for name, user, group in (
        ("admin", "admin", "system:masters"),
        ("kcm", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("proxy", "system:kube-proxy", None),
        ("node", f"system:node:{layout.NODE}", "system:nodes"),
        ("dns", "dns", "system:masters"),
    ):
        pair = authority.issue(name, user, group=group)
        kubeconfig.write(folder / f"{name}.kubeconfig", layout.URL, authority.pair.cert, pair)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in ("TUNEWRIGHT_CACHE", "XDG_CACHE_HOME") if name in os.environ}
    environment = plain_environment(**kept, TUNEWRIGHT_BOX=str(folder), PYTHONPATH=str(_ROOT))
    namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (folder / "log" / "box.log").open("wb") as log:
        return subprocess.Popen(
            [needs.command("unshare"), *namespaces, sys.executable, "-m", f"{__package__}.inside"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=_ROOT,
            env=environment,
            start_new_session=True,
        )


def _first_child(outer: subprocess.Popen[bytes]) -> int:
    """The process that unshare forked, once it is in its own network namespace."""
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    ours = Path("/proc/self/ns/net").readlink()
    found: list[int] = []

    def there() -> bool:
        if outer.poll() is not None:
            raise RuntimeError("unshare ended at once: does this machine allow new namespaces?")
        found[:] = [int(pid) for pid in children.read_text().split()]
        return bool(found) and Path(f"/proc/{found[0]}/ns/net").readlink() != ours

    wait_for(there, "the box's first process")
    return found[0]


def _connect(init: int) -> None:
    ip = needs.command("ip")
    within = [needs.command("nsenter"), "--target", str(init), "--net", ip]
    for command in (
        [ip, "link", "add", layout.UPLINK, "type", "veth", "peer", "name", "up0", "netns", str(init)],
        [ip, "addr", "add", f"{layout.HOST_ADDRESS}/30", "dev", layout.UPLINK],
        [ip, "link", "set", layout.UPLINK, "up"],
        [*within, "addr", "add", f"{layout.INNER_ADDRESS}/30", "dev", "up0"],
        [*within, "link", "set", "up0", "up"],
        [ip, "route", "add", layout.PODS, "via", layout.INNER_ADDRESS],
        [ip, "route", "add", layout.SERVICES, "via", layout.INNER_ADDRESS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}`: {done.stderr.strip()}")


def _make_cgroups() -> None:
    if (layout.CGROUPS / "cgroup.controllers").exists():
        available = (layout.CGROUPS / "cgroup.controllers").read_text().split()
        (layout.CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in available))
        (layout.CGROUPS / layout.CGROUP).mkdir(exist_ok=True)
        return
    for group in _cgroups():
        group.mkdir(exist_ok=True)
        if group.parent.name == "cpuset":  # a new one is empty, and no process may enter an empty one
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group / name).write_text((group.parent / name).read_text())


def _cgroups() -> list[Path]:
    """The box's control group in each hierarchy: one in version 2, one a controller in version 1."""
    if (layout.CGROUPS / "cgroup.controllers").exists():
        return [layout.CGROUPS / layout.CGROUP]
    hierarchies = (path for path in layout.CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())
    return [path / layout.CGROUP for path in hierarchies if path.name != "unified"]


def _remove_cgroup(group: Path) -> bool:
    for path, _, _ in os.walk(group, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:
            return False
    return True


def _remember(folder: Path, outer: subprocess.Popen[bytes], init: int) -> None:
    state = {"outer": outer.pid, "started": _started(outer.pid), "init": init}
    (folder / _STATE).write_text(json.dumps(state))


def _state() -> dict[str, int] | None:
    """What is written about the box, if the process that holds it is still the very one that was started."""
    try:
        state = json.loads((layout.folder() / _STATE).read_text())
    except FileNotFoundError:
        return None
    return state if state and _started(state["outer"]) == state["started"] else None


def _started(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot: process ids are used again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _ctr(folder: Path, *arguments: str) -> str:
    socket = folder / "containerd" / "c.sock"
    command = [
        str(build.binary("containerd", "ctr")),
        f"--address={socket}",
        "--namespace=k8s.io",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`ctr {' '.join(arguments)}`: {done.stderr.strip()}")
    return done.stdout


def _answers(folder: Path) -> bool:
    try:
        _ctr(folder, "version")
    except RuntimeError:
        return False
    return True


def _node_ready(box: Box) -> bool:
    try:
        return condition(box.request("GET", f"/api/v1/nodes/{layout.NODE}", timeout=10), "Ready") is not None
    except (ApiError, OSError):
        return False
