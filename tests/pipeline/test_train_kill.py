"""A run killed at twenty random instants ends in the same losses and the same adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.rows import assistant, chat, environment, user, write
from support.training import Job
from tunewright_workloads.contract import exits

pytestmark = pytest.mark.pipeline

POINTS, STEPS = 20, 40

# One process imports everything once; every attempt is a fork of it, from before JAX has a backend.
FORKS = """
import os, random, sys, threading, time
from tunewright_workloads.train import __main__ as program, board, checkpoints, run, metrics
board._writer_class()
whole, killed, points = sys.argv[1], sys.argv[2], int(sys.argv[3])
start = metrics.Metrics.start

def attempt(config, delay):
    pid = os.fork()
    if pid == 0:
        def armed(self, step):
            start(self, step)
            if delay is not None:
                threading.Timer(delay, os.kill, (os.getpid(), 9)).start()
        metrics.Metrics.start = armed
        code = program.main(["--config", config])
        sys.stdout.flush()
        os._exit(code)
    began = time.monotonic()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic() - began

code, _ = attempt(whole, None)
assert code == 0, code
draw, deaths = random.Random(7), []
while len(deaths) < points:
    # The clock starts when training does; compiled programs come from the cache by now.
    code, _ = attempt(killed, draw.uniform(0.0, 1.5))
    if code == 0:
        break
    assert code == -9, code
    deaths.append(code)
print("deaths", len(deaths), flush=True)
code, _ = attempt(killed, None)
sys.exit(code)
"""


def test_a_run_killed_at_twenty_random_instants_is_the_run_that_was_not(tmp_path: Path) -> None:
    validation = f"file://{write(tmp_path / 'val.jsonl', chat(user('What?'), assistant('An operator.')))}"
    settings = {
        "training": {"steps": STEPS},
        "checkpointEvery": 1,
        "dataset": {"validation": [validation]},
    }
    whole, killed = Job(tmp_path / "whole", **settings), Job(tmp_path / "killed", **settings)
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(whole.file), str(killed.file), str(POINTS)],
        capture_output=True, text=True, check=False, timeout=580,
        env=environment(
            JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            TOKENIZERS_PARALLELISM="false",
        ),
    )  # fmt: skip
    assert done.returncode == exits.DONE, done.stdout[-2000:] + done.stderr[-4000:]
    (deaths,) = (int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("deaths "))
    assert deaths >= POINTS // 2  # a run may be through before its last appointment
    assert killed.report()["attempts"] >= 2
    assert killed.losses() == whole.losses()
    a, b = whole.adapter(STEPS), killed.adapter(STEPS)
    assert a.keys() == b.keys()
    assert all(value.tobytes() == b[key].tobytes() for key, value in a.items())
    assert killed.report()["evalLoss"] == whole.report()["evalLoss"]
    assert not [p.name for p in (killed.out / "checkpoints").iterdir() if "tmp" in p.name]
