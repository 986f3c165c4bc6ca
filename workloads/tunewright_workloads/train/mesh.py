"""How the devices are laid out: axes `fsdp` (weights and batch are split) and `tp` (heads are split).

Every choice is checked against every axis that is split; nothing is silently replicated.
"""

from __future__ import annotations

from tunewright_workloads.contract.configs import MeshConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.gemma import layout
from tunewright_workloads.gemma.architecture import Architecture


def choose(config: MeshConfig, arch: Architecture, devices: int, rows: int) -> tuple[int, int]:
    """(fsdp, tp) with fsdp * tp == devices.

    rows: rows of the batch that are computed at a time; fsdp must divide them. What the
    configuration leaves open is chosen with the least tp that works: tp costs an all-reduce a layer,
    fsdp's gathers hide under the matmuls.
    Raises UserError naming the axis and its numbers.
    """
    if config.fsdp and config.tp and config.fsdp * config.tp != devices:
        raise UserError(
            Fault(
                "mesh",
                f"fsdp * tp must be the number of devices, {devices}",
                f"{config.fsdp} * {config.tp} = {config.fsdp * config.tp}",
            )
        )
    for name, size in (("fsdp", config.fsdp), ("tp", config.tp)):
        if size and devices % size:
            raise UserError(Fault(f"mesh.{name}", f"must divide the number of devices, {devices}", str(size)))
    if config.fsdp or config.tp:
        tp = config.tp or devices // (config.fsdp or 1)
        found = faults(arch, devices // tp, tp, rows)
        if found:
            raise UserError(found)
        return devices // tp, tp
    tried: list[Fault] = []
    for tp in (n for n in range(1, devices + 1) if devices % n == 0):
        found = faults(arch, devices // tp, tp, rows)
        if not found:
            return devices // tp, tp
        tried = tried or found
    raise UserError(tried, title=f"No mesh of {devices} devices divides this model and batch")


def faults(arch: Architecture, fsdp: int, tp: int, rows: int) -> list[Fault]:
    """What (fsdp, tp) does not divide, the batch included."""
    found = layout.faults(arch, {"fsdp": fsdp, "tp": tp})
    if rows % fsdp:
        fix = f"Make it a multiple of {fsdp}, or give the mesh a smaller fsdp."
        found.append(Fault("mesh.fsdp", f"must divide the rows computed at a time, {rows}", str(fsdp), fix))
    return found
