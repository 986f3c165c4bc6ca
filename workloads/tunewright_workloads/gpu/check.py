"""What the PyTorch program does not do, found before torch is imported or anything is fetched."""

from __future__ import annotations

from tunewright_workloads.contract import uris
from tunewright_workloads.contract.configs import TrainConfig
from tunewright_workloads.contract.faults import Fault, UserError


def check(config: TrainConfig) -> None:
    """Raises UserError with every reason why this program cannot run the configuration."""
    t, world, faults = config.training, config.mesh.fsdp or 1, []
    if config.adapter.quantize_base != "none":
        faults.append(
            Fault(
                "adapter.quantizeBase",
                "is not done by the PyTorch program",
                config.adapter.quantize_base,
                "Use none, or train on TPU.",
            )
        )
    if (config.mesh.tp or 1) > 1:
        faults.append(
            Fault("mesh.tp", "the PyTorch program shards with FSDP alone", str(config.mesh.tp), "Use 1.")
        )
    if uris.parse(config.output, "output").scheme != "file":
        faults.append(
            Fault(
                "output",
                "the PyTorch program writes checkpoints to a mounted path",
                config.output,
                "Use pvc:// in the job (file:// on this machine).",
            )
        )
    micro = t.micro_batch_size or t.global_batch_size
    if t.global_batch_size % micro or micro % world:
        faults.append(
            Fault(
                "training.microBatchSize" if t.micro_batch_size else "training.globalBatchSize",
                f"must divide the global batch of {t.global_batch_size} and be a multiple of the {world} GPUs",
                str(micro),
            )
        )
    if faults:
        raise UserError(faults)
