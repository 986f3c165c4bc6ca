"""The TPU's compiler on a machine without a TPU: libtpu, one process at a time.

libtpu refuses to be loaded by two processes of a machine; whoever comes second waits here.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tunewright_workloads.contract import accelerators
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.preflight.hlo import Rates

MISSING = "the TPU compiler (libtpu) is not installed: `make install-tpu` makes an environment that has it"

RATES: dict[str, Rates] = {
    "v5e": Rates(clock=1.5e9, hbm=819e9, link=45e9, links=2),
    "v5p": Rates(clock=1.75e9, hbm=2.765e12, link=90e9, links=2),
    "v6e": Rates(clock=1.75e9, hbm=1.64e12, link=90e9, links=2),
}
"""Clock: peak FLOP/s over the matrix units' FLOP a cycle. Links: the rate of one in one direction,
and two of them, as rings over the small slices use them."""


def available() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def devices(accelerator: str, topology: str) -> list[Any]:
    """The devices of a slice that is not there, in the order of the compiler, for compiling only.

    Raises UserError where libtpu is not installed or does not know the slice.
    """
    place = f"{accelerator} {topology}"
    if not available():
        raise UserError(Fault(place, MISSING))
    if accelerator not in RATES:
        known = ", ".join(RATES)
        raise UserError(Fault("mesh.accelerator", f"must be one of {known} to be compiled for", accelerator))
    chips = accelerators.slice_of(accelerator, topology).chips
    _alone()
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE=accelerators.ACCELERATORS[accelerator].slice_name(chips),
        TPU_WORKER_HOSTNAMES="localhost",
    )
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=f"{accelerator}:{topology}")
    except Exception as error:  # libtpu raises its own kinds
        raise UserError(Fault(place, f"is no slice that libtpu compiles for: {error}")) from error
    return list(found.devices)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device. The compiler refuses only temporaries that are too large alone."""

    arguments: int
    outputs: int
    temporaries: int
    code: int

    @property
    def peak(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code

    @classmethod
    def of(cls, compiled: Any) -> Memory:
        found = compiled.memory_analysis()
        return cls(
            arguments=found.argument_size_in_bytes,
            outputs=found.output_size_in_bytes - found.alias_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            code=found.generated_code_size_in_bytes,
        )


@dataclass(frozen=True)
class Compiled:
    """A compiled program: its scheduled text, memory, and the seconds that compiling took."""

    text: str
    memory: Memory
    seconds: float


class TooLarge(UserError):  # noqa: N818
    """The program's temporaries alone exceed the chip's memory."""


def compile_(traced: Any) -> Compiled:
    """Compiles a traced jitted function whose arguments' shardings lie on `devices`.

    Raises TooLarge with the compiler's own numbers.
    """
    began = time.monotonic()
    lowered = traced.lower(lowering_platforms=("tpu",))
    try:
        compiled = lowered.compile()
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise TooLarge(Fault("memory", "is too small, says the compiler", lines[0][:300])) from error
    return Compiled(compiled.as_text(), Memory.of(compiled), time.monotonic() - began)


_held: list[IO[str]] = []


def _alone() -> None:
    """Waits until no other process has libtpu. A process never unloads it, so it is held until the end."""
    if not _held:
        file = (Path(tempfile.gettempdir()) / f"tunewright-libtpu-{os.getuid()}.lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.append(file)
