"""One process group with a log file and a pid file, which a later run can still find."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

_POLL = 0.05

_GATE = 'read -r go && exec "$@" </dev/null'
"""The command starts only when its pid is on disk: a runner killed in between leaves nothing behind."""


class Process:
    """A started command, leader of its own session.

    Its output goes straight into the log file and never through a pipe, so that the process
    survives (and can save its checkpoint) when the runner dies. Ctrl-C in the terminal reaches
    only the runner, which decides.
    """

    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path, log: Path, pidfile: Path) -> None:
        self.pidfile = pidfile
        self._code: int | None = None
        for folder in (cwd, log.parent, pidfile.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "sh", *argv], env=env, cwd=cwd, stdin=subprocess.PIPE,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        record = {"pid": self._child.pid, "started": started(self._child.pid)}
        temporary = pidfile.with_name(pidfile.name + ".new")
        temporary.write_text(json.dumps(record))
        temporary.replace(pidfile)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(b"go\n")
            self._child.stdin.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        """The exit code as a shell tells it (128 + signal), None while it runs.

        Once the leader has ended, what is left of its group is ended too.
        """
        if self._code is None:
            code = self._child.poll()
            if code is None:
                return None
            self.kill()
            self.pidfile.unlink(missing_ok=True)
            self._code = code if code >= 0 else 128 - code
        return self._code

    def terminate(self) -> None:
        if self._code is None:
            _signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self._code is None:
            _signal(self.pid, signal.SIGKILL)

    def stop(self, grace: float) -> int:
        """SIGTERM, wait at most `grace` seconds, SIGKILL. Returns the exit code."""
        self.terminate()
        end = time.monotonic() + grace
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill()
                end = float("inf")
            time.sleep(_POLL)
        return code


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def started(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None when it is gone.

    On Linux the boot and the start time in clock ticks; elsewhere what `ps` says.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        if fields[0] in "ZX":  # ended, and nobody has waited for it
            return None
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{fields[19]}"
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except ProcessLookupError:
        return None
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    text = found.stdout.strip()
    return text.partition(" ")[2].strip() if text and not text.startswith("Z") else None


def orphan(pidfile: Path) -> int | None:
    """The pid of a process that an earlier runner started and that still runs, else None."""
    try:
        record = json.loads(pidfile.read_text())
        pid, since = int(record["pid"]), record["started"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return pid if since is not None and started(pid) == since else None


def end_orphan(pidfile: Path, grace: float) -> int | None:
    """Ends a process left by a runner that died: SIGTERM, `grace` seconds to save its state, SIGKILL.

    Returns its pid, None when there was none.
    """
    pid = orphan(pidfile)
    if pid is not None:
        _signal(pid, signal.SIGTERM)
        end = time.monotonic() + grace
        while orphan(pidfile) is not None and time.monotonic() < end:
            time.sleep(_POLL)
        _signal(pid, signal.SIGKILL)
        while orphan(pidfile) is not None:
            time.sleep(_POLL)
    pidfile.unlink(missing_ok=True)
    return pid
