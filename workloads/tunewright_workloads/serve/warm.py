"""Fills a compile cache: starts vLLM as it will be started, waits until it is ready, and ends it.

The first start on a slice compiles for 10-30 minutes. Done once, in a Job of its own, it is not done by every
replica at the same time, and what goes wrong is said by the Job and not by a probe that ends a server.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from tunewright_workloads.contract import engine
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.serve import vllm

log = logging.getLogger("tunewright.serve")

MARKER = "tunewright-warm.json"
"""Written last into a cache that is filled. The folder's name is the key: image, slice and arguments."""

GRACE_SECONDS = 60


def fill(config: ServeConfig, *, hashes: bool = True) -> None:
    """Returns once the cache is filled; at once where it is already.

    Raises UserError for a configuration without a cache, and what `vllm.prepare` raises; VllmError when vLLM
    ends or is not ready within the startup budget.
    """
    if config.engine != "vllm" or config.compile_cache is None:
        what = config.engine if config.engine != "vllm" else "no compileCache"
        raise UserError(
            Fault("--warm-up", "needs engine vllm and a compileCache", show(what), "Serve without it.")
        )
    marker = Path(config.compile_cache) / MARKER
    if marker.exists():
        log.info("%s: the programs are there already", config.compile_cache)
        return
    marker.parent.mkdir(parents=True, exist_ok=True)
    command, environment = vllm.prepare(config, hashes=hashes)
    begun = time.monotonic()
    with subprocess.Popen(command, env=environment, start_new_session=True) as child, vllm.passing(child):
        try:
            _ready(child, config, begun + engine.budgets(config).startup)
        finally:
            _end(child)
    seconds = round(time.monotonic() - begun, 1)
    record = {"filled": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": seconds}
    new = marker.with_name(f".{MARKER}.new")
    new.write_text(json.dumps(record) + "\n", encoding="utf-8")
    new.replace(marker)
    log.info("%s: filled in %.0f s", config.compile_cache, seconds)


def _ready(child: subprocess.Popen[bytes], config: ServeConfig, end: float) -> None:
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    url = f"http://{host}:{config.port}/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        code = child.poll()
        if code is not None:
            raise vllm.VllmError(f"vLLM ended with code {code} before it was ready; its own message is above")
        try:
            with opener.open(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.HTTPError, OSError):
            pass
        if time.monotonic() > end:
            raise vllm.VllmError("vLLM was not ready in time; its own messages are above")
        time.sleep(0.5)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
