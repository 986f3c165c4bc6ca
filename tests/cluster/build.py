"""Builds the Kubernetes tools that the tests run, once, into a cache outside the clone.

Every tool is a Go module under `tools/` whose go.mod and go.sum pin each of its dependencies, so a
build is the same everywhere and needs no release download. A build is kept in a folder named by the
hash of what goes into it: an edit of a go.mod is a new folder, and an old one never stands in for it.

    python -m tests.cluster.build [NAME...]      prints the folder of each, builds what is missing
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).parent / "tools"

GO_MINIMUM = (1, 26)


class UnavailableError(Exception):
    """This machine lacks what a tool needs; the message says what and the way out. Tests skip on it."""


class BuildError(Exception):
    """A tool did not compile: a fault to fix, never a reason to skip."""


@dataclass(frozen=True)
class Asset:
    """A folder of one of the tool's modules that is kept beside its binary (a chart, a set of manifests)."""

    module: str
    folder: str


@dataclass(frozen=True)
class Tool:
    """One Go module of ours: the binaries built in it, and what is kept beside them.

    `binaries` maps a file name to the package it is built from; `versions` maps a linker symbol to what
    it is set to, where `{major}`, `{minor}` and `{version}` are those of the module in `versioned_by`.
    """

    binaries: Mapping[str, str]
    seconds: int
    """Roughly what a cold build takes on two cores: printed, so that nobody takes it for a hang."""
    assets: Mapping[str, Asset] = field(default_factory=dict)
    versioned_by: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


TOOLS: Mapping[str, Tool] = {
    "kubebox": Tool(
        binaries={"kubebox": "."},
        seconds=280,
        versioned_by="k8s.io/kubernetes",
        versions={
            "k8s.io/component-base/version.gitVersion": "{version}",
            "k8s.io/component-base/version.gitMajor": "{major}",
            "k8s.io/component-base/version.gitMinor": "{minor}",
        },
    ),
    "kwok": Tool(
        binaries={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        seconds=70,
        assets={"stages": Asset("sigs.k8s.io/kwok", "kustomize/stage")},
    ),
    "jobset": Tool(
        binaries={"jobset": "sigs.k8s.io/jobset"},
        seconds=90,
        assets={"chart": Asset("sigs.k8s.io/jobset", "charts/jobset")},
    ),
    "kueue": Tool(
        binaries={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        seconds=180,
        assets={"chart": Asset("sigs.k8s.io/kueue", "charts/kueue")},
    ),
    # Helm compares a chart's kubeVersion with a version that its own build sets; left out it is 1.20.
    "helm": Tool(
        binaries={"helm": "helm.sh/helm/v3/cmd/helm"},
        seconds=70,
        versioned_by="k8s.io/client-go",
        versions={
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": "1",
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": "{minor}",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "{minor}",
        },
    ),
    "kubeconform": Tool(binaries={"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"}, seconds=5),
    "containerd": Tool(
        binaries={
            "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
            "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
        },
        seconds=70,
    ),
    "dns": Tool(binaries={"dns": "."}, seconds=110),
    "pause": Tool(binaries={"pause": "."}, seconds=5),
}


def cache() -> Path:
    """Where built tools live: shared by every clone, outside all of them."""
    own = os.environ.get("TUNEWRIGHT_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shared) / "tunewright"


def folder(name: str) -> Path:
    """The cached folder of a tool, built first when it is missing.

    Raises UnavailableError when Go is missing or too old, BuildError when the tool does not compile.
    """
    if name not in TOOLS:
        raise ValueError(f"no tool is called {name!r}; there are {', '.join(TOOLS)}")
    target = cache() / "tools" / f"{name}-{fingerprint(name)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / f"{name}.lock"):
        if not target.is_dir():  # somebody else may have built it while we waited
            _build(name, target)
    return target


def binary(name: str, file: str | None = None) -> Path:
    """The executable of a tool: the one of its own name unless `file` names another."""
    return folder(name) / (file or name)


def fingerprint(name: str) -> str:
    """The hash of everything that decides what a tool's build is, as 12 hex digits."""
    digest = hashlib.sha256(f"{TOOLS[name]!r} {platform.system()} {platform.machine()}".encode())
    for path in sorted((SOURCES / name).iterdir()):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def go() -> str:
    """The path of a Go toolchain that is new enough, else UnavailableError."""
    wanted = ".".join(map(str, GO_MINIMUM))
    found = shutil.which("go")
    if found is None:
        raise UnavailableError(
            f"Go is not installed, and the test cluster is built from Go modules; install Go {wanted} or newer, "
            "or set TUNEWRIGHT_TEST_KUBECONFIG to the kubeconfig of a cluster that may be used for tests"
        )
    answer = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    version = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    if version is None or (int(version[1]), int(version[2])) < GO_MINIMUM:
        seen = answer.stdout.strip() or answer.stderr.strip() or "no version"
        raise UnavailableError(
            f"{found} is {seen}, and the test cluster needs Go {wanted} or newer: update it"
        )
    return found


def _build(name: str, target: Path) -> None:
    tool, compiler = TOOLS[name], go()
    print(
        f"building {name}: about {tool.seconds} s on two cores, the first time only",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        flags = " ".join(["-s", "-w", *(f"-X {symbol}={value}" for symbol, value in _versions(name).items())])
        for file, package in tool.binaries.items():
            _go(
                name,
                compiler,
                "build",
                "-mod=readonly",
                "-trimpath",
                "-ldflags",
                flags,
                "-o",
                str(scratch / file),
                package,
            )
        for kept, asset in tool.assets.items():
            shutil.copytree(_module(name, compiler, asset.module) / asset.folder, scratch / kept)
        _writable(scratch)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    print(f"built {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _go(name: str, compiler: str, *arguments: str) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        [compiler, *arguments],
        cwd=SOURCES / name,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"`go {arguments[0]}` failed in {SOURCES / name}:\n{done.stderr[-4000:].strip()}")
    return done.stdout


def _module(name: str, compiler: str, module: str) -> Path:
    return Path(json.loads(_go(name, compiler, "list", "-m", "-json", module))["Dir"])


def _versions(name: str) -> dict[str, str]:
    tool = TOOLS[name]
    if not tool.versions:
        return {}
    stated = (SOURCES / name / "go.mod").read_text()
    found = re.search(
        rf"^\s*(?:require )?{re.escape(tool.versioned_by)} v(\d+)\.(\d+)\.(\d+)", stated, re.MULTILINE
    )
    if found is None:
        raise BuildError(f"{SOURCES / name / 'go.mod'} requires no released version of {tool.versioned_by}")
    major, minor, patch = found.groups()
    said = {"version": f"v{major}.{minor}.{patch}", "major": major, "minor": minor}
    return {symbol: value.format(**said) for symbol, value in tool.versions.items()}


def _writable(root: Path) -> None:
    # The module cache is read-only; a copy that its owner cannot delete would outlive every clean-up.
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds a lock file, so that two runs do not make the same thing at once."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.build", description="Build the test tools."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(TOOLS)} (default: all)")
    names = parser.parse_args().names or list(TOOLS)
    try:
        for name in names:
            print(folder(name))
    except (UnavailableError, BuildError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
