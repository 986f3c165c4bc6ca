"""Child processes of a test cluster: started on free ports, logged to files, ended by their own id."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

# Below the range that kernels give to outgoing connections: a port found free here stays free until its
# server binds it, unless another test run draws the same one.
_PORTS = range(20000, 32000)

_PR_SET_PDEATHSIG = 1


class ProcessDiedError(Exception):
    """A component ended by itself; the message ends with the last lines it wrote."""


class Process:
    """One long-running child with its own log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running child."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the child runs now."""
        return self._child is not None and self._child.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code; None while the child runs. Negative: the signal that ended it."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Starts the child in a session of its own, so that a Ctrl-C in the terminal is ours to handle."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent() if _in_main_thread() else None,
            )

    def check(self) -> None:
        """Raises ProcessDiedError when the child has ended."""
        if self._child is not None and self._child.poll() is not None:
            code = self._child.returncode
            raise ProcessDiedError(f"{self.name} ended with exit code {code}; its last words:\n{self.tail()}")

    def stop(self, how: signal.Signals = signal.SIGKILL, grace: float = 60.0) -> None:
        """Ends the child and reaps it; one that ignores `how` for `grace` seconds is killed."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(how)
            try:
                self._child.wait(grace)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_for(
    ready: Callable[[], bool], what: str, watched: Iterable[Process] = (), timeout: float = 120.0
) -> None:
    """Polls `ready` until it holds; a watched process that dies ends the wait at once with its own words."""
    watched = list(watched)
    deadline = time.monotonic() + timeout
    while not ready():
        for process in watched:
            process.check()
        if time.monotonic() > deadline:
            tails = "".join(f"\n--- {process.name}\n{process.tail()}" for process in watched)
            raise TimeoutError(f"{what} did not come within {timeout:.0f} s{tails}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} loopback ports are free between {_PORTS.start} and {_PORTS.stop}")


def plain_environment(**more: str) -> dict[str, str]:
    """An environment in which no setting of the user's reaches a component (proxies, KUBECONFIG)."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | more


def _in_main_thread() -> bool:
    # The kernel ends the child with the *thread* that started it.
    return threading.current_thread() is threading.main_thread()


def _die_with_parent() -> Callable[[], None] | None:
    """A hook that has the kernel kill the child with us, so that a killed test run leaves nothing behind."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
