"""One process a GPU on this machine, with the exit codes of the contract.

`torchrun` ends with 1 whatever its workers ended with, so that bad input would be retried and a
preemption would count as a failure; this starts the same workers with the same environment.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from tunewright_workloads.contract import exits

GRACE = 60.0
"""Seconds that the other workers get to end by themselves after one has ended in failure."""


def workers(count: int, argv: Sequence[str]) -> int:
    """Runs `python -m tunewright_workloads.gpu ARGV` in `count` processes; returns the exit code.

    That is 0 when all ended so, else the worst: bad input before preempted before anything else.
    """
    environment = {
        **os.environ,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count))),
    }
    command = [sys.executable, "-m", "tunewright_workloads.gpu", *argv]
    running = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in running:
            if process.poll() is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    failed: float | None = None
    while any(process.poll() is None for process in running):
        codes = [process.poll() for process in running]
        if failed is None and any(code not in (None, exits.DONE, exits.PREEMPTED) for code in codes):
            failed = time.monotonic()
        if failed is not None and time.monotonic() - failed > GRACE:
            for process in running:
                if process.poll() is None:
                    process.kill()
        time.sleep(0.1)
    return worst([_code(process.returncode) for process in running])


def worst(codes: Sequence[int]) -> int:
    """The code that says most: what must not be retried, then what ended the others."""
    if exits.BAD_INPUT in codes:
        return exits.BAD_INPUT
    own = [
        code for code in codes if code not in (exits.DONE, exits.PREEMPTED, exits.KILLED, exits.TERMINATED)
    ]
    for code in (*own, exits.KILLED, exits.TERMINATED, exits.PREEMPTED):
        if code in codes:
            return code
    return exits.DONE


def _code(returned: int) -> int:
    return 128 - returned if returned < 0 else returned


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
