"""Runs a merge again and again, each time killed at another point, and compares what the next run leaves.

A program of its own, so that the process which forks has no threads: every attempt is a fork of it,
with the imports already paid for. A point is one operation that changes the outside world: a write,
a sync, a rename, a removal, a request. A write is torn in the middle.

    python -m support.killing CONFIG POINTS SEED
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import hashlib
import json
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from tunewright_workloads import storage
from tunewright_workloads.contract.configs import MergeConfig, load
from tunewright_workloads.merge import publish, sink, stream
from tunewright_workloads.storage import cloud  # noqa: F401  # imported before the forks, which need it

stream.Streamer.__init__.__defaults__ = (2, 64 << 10)  # small blocks and chunks: more points
sink._CHUNK = 64 << 10


class Counter:
    """Counts operations; kills the process at the chosen one."""

    def __init__(self, point: int | None) -> None:
        self.point, self.count, self.lock = point, 0, threading.Lock()

    def hit(self) -> bool:
        with self.lock:
            self.count += 1
            return self.count == self.point

    def wrap(self, owner: Any, name: str, torn: Callable[..., object] | None = None) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.hit():
                if torn:
                    torn(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(owner, name, wrapped)

    def watch(self, remote: bool) -> None:
        write = os.write
        pwrite = os.pwrite
        self.wrap(os, "write", lambda number, data: write(number, data[: len(data) // 2]))
        self.wrap(os, "pwrite", lambda number, data, at: pwrite(number, data[: len(data) // 8192 * 4096], at))
        for name in ("fsync", "fdatasync", "unlink", "rename", "replace", "mkdir", "ftruncate"):
            self.wrap(os, name)
        if remote:
            real = requests.Session.request

            def request(session: Any, *args: Any, **kwargs: Any) -> Any:
                if self.hit():
                    os.kill(os.getpid(), signal.SIGKILL)  # before it is sent
                answer = real(session, *args, **kwargs)
                if self.hit():
                    os.kill(os.getpid(), signal.SIGKILL)  # after it took effect
                return answer

            requests.Session.request = request  # type: ignore[method-assign]


def attempt(config: MergeConfig, point: int | None) -> tuple[int, int]:
    """(exit status or -signal, operations) of one run in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            counter = Counter(point)
            counter.watch(config.output.startswith("gs://"))
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
            publish.merge(config)
            code = 0
            with os.fdopen(write, "w") as pipe:
                pipe.write(str(counter.count))
        except BaseException as error:
            sys.__stderr__.write(f"{type(error).__name__}: {error}\n")  # type: ignore[union-attr]
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        count = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), int(count or 0)


def digests(uri: str) -> dict[str, str]:
    """sha256 of every published file; a store is opened for it in this process only at the very end."""
    store = storage.store(uri)
    return {e.name: hashlib.sha256(store.get(e.name)).hexdigest() for e in store.entries()}


def main() -> None:
    config = load(MergeConfig, sys.argv[1])
    points, seed = int(sys.argv[2]), int(sys.argv[3])
    work = Path(config.work)

    def at(name: str) -> MergeConfig:
        return config.model_copy(update={"output": f"{config.output}/{name}", "work": str(work / name)})

    code, total = attempt(at("reference"), None)
    assert code == 0, "the uninterrupted run failed"
    rng = random.Random(seed)
    chosen = sorted(rng.sample(range(1, total + 1), points))
    killed = 0
    for point in chosen:
        code, _ = attempt(at(f"at{point}"), point)
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), f"point {point}: exit {code}"
        if rng.random() < 0.5:  # a retry in another pod begins with an empty disk
            shutil.rmtree(work / f"at{point}", ignore_errors=True)
        code, _ = attempt(at(f"at{point}"), None)
        assert code == 0, f"the run after a kill at {point} of {total} failed: {code}"
    for point in sorted(rng.sample(range(1, total + 1), 8)):  # one directory, killed again and again
        attempt(at("often"), point)
    assert attempt(at("often"), None)[0] == 0
    want = digests(at("reference").output)
    for name in [*(f"at{p}" for p in chosen), "often"]:
        got = digests(at(name).output)
        assert got == want, f"{name} of {total}: {sorted(set(got.items()) ^ set(want.items()))}"
    print(json.dumps({"operations": total, "killed": killed, "points": points}))


if __name__ == "__main__":
    main()
