"""Starts the real vLLM, in its own interpreter, with the arguments of `contract.engine`."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tunewright_workloads import storage
from tunewright_workloads.contract import engine
from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.lineage import Manifest
from tunewright_workloads.contract.models import CUSTOM, ModelSpec
from tunewright_workloads.gemma.architecture import Architecture
from tunewright_workloads.gemma.architecture import parse as parse_architecture
from tunewright_workloads.gemma.architecture import read as read_architecture
from tunewright_workloads.serve.verify import verify, verify_remote

log = logging.getLogger("tunewright.serve")

PYTHON = "TUNEWRIGHT_VLLM_PYTHON"
"""Names the interpreter that has vLLM, which cannot share an environment with Tunix."""


class VllmError(RuntimeError):
    """vLLM ended by itself; its own output says why."""


def run(config: ServeConfig, *, hashes: bool = True) -> None:
    """Serves with vLLM until it ends or a signal ends it.

    Raises UserError for a model or setting that cannot be served, or where there is no vLLM;
    VllmError when vLLM itself fails.
    """
    command, environment = prepare(config, hashes=hashes)
    code = _supervise(command, environment)
    if code != 0:
        raise VllmError(f"vLLM ended with code {code}; its own message is above")


def prepare(config: ServeConfig, *, hashes: bool = True) -> tuple[list[str], dict[str, str]]:
    """vLLM's command and whole environment, once the model is here and is what its manifest says.

    Raises UserError for a model or setting that cannot be served, or where there is no vLLM.
    """
    python = interpreter()
    chip = accelerator(config.accelerator, "accelerator")
    if config.model.startswith("gs://") and chip.kind != "cpu" and config.require_manifest:
        weights = _weights(verify_remote(config.model))
        found_config = json.loads(storage.store(config.model, place="model").get("config.json"))
        spec = spec_of(parse_architecture(found_config, f"{config.model}/config.json"))
    else:
        work = Path(config.work)
        directory = storage.localize(config.model, work, revision=config.revision, place="model")
        spec, weights = spec_of(read_architecture(directory)), _on_disk(directory)
        if config.require_manifest:
            weights = _weights(verify(directory, hashes=hashes))
        config = config.model_copy(update={"model": f"file://{directory.resolve()}"})
    found = engine.plan(config, spec, weight_bytes=weights)
    for note in found.notes:
        log.warning("%s", note)
    if found.fit:
        log.info("memory: %s", found.fit)
    command = [python, *found.command[1:]]
    # What a user set for the process stands above what is planned.
    environment = {**found.variables, **os.environ}
    environment.pop("PYTHONPATH", None)  # ours: the other interpreter has packages of its own
    log.info("starting %s", " ".join(command))
    return command, environment


def interpreter() -> str:
    """The Python that has vLLM. Raises UserError that says how to get one."""
    named = os.environ.get(PYTHON)
    if named:
        found = shutil.which(named)
        if found is None:
            raise UserError(Fault(PYTHON, "must name a Python that can be run", show(named)))
        return found
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    raise UserError(
        Fault(
            "engine",
            "vllm is not installed for this Python",
            show("vllm"),
            f"Run `make install-vllm` and set {PYTHON}=.venv-vllm/bin/python, or use the engine jax.",
        )
    )


def spec_of(found: Architecture) -> ModelSpec:
    """The catalog's form of an architecture that was read from a checkpoint."""
    every = next((i + 1 for i, is_global in enumerate(found.globals) if is_global), found.layers + 1)
    return ModelSpec(
        name=CUSTOM,
        source="",
        layers=found.layers,
        global_every=every,
        embed=found.embed,
        hidden=found.hidden,
        heads=found.heads,
        local_kv_heads=found.local_kv_heads,
        global_kv_heads=found.global_kv_heads,
        head_dim=found.head_dim,
        global_head_dim=found.global_head_dim,
        window=found.window,
        vocab=found.vocab,
        k_eq_v=found.k_eq_v,
        kv_shared_layers=found.kv_shared_layers,
        wide_hidden=2 * found.hidden if found.wide else None,
        ple=found.ple,
        params=0,  # the files say what the weights take
        max_context=found.max_positions,
    )


def _weights(manifest: Manifest) -> float:
    return float(sum(d.size for name, d in manifest.files.items() if name.endswith(".safetensors")))


def _on_disk(directory: Path) -> float:
    return float(sum(path.stat().st_size for path in directory.glob("*.safetensors")))


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Runs vLLM, passing SIGTERM and SIGINT on. Its exit code; 0 when it ended by a signal of ours."""
    # A group of its own: a terminal's Ctrl-C must not reach it twice.
    with subprocess.Popen(command, env=environment, start_new_session=True) as child, passing(child) as sent:
        code = child.wait()
    if sent and code in (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT):
        return 0
    return code


@contextmanager
def passing(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forwards the signals that end a server; yields those that came."""
    sent: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        sent.append(number)
        child.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield sent
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
