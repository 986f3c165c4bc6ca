"""`python -m tunewright_workloads.evaluate --config FILE`: the loss of a published model on validation rows.

Above `maxEvalLoss` the exit code is 2: the model is not what was asked for, and trying again would
find the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tunewright_workloads import storage
from tunewright_workloads.contract import configs, exits, meshes
from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.faults import Fault, UserError, machine
from tunewright_workloads.contract.progress import Progress, ProgressFile
from tunewright_workloads.data import dataset, tokenizer
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.gemma import architecture
from tunewright_workloads.gemma.architecture import Architecture


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; the last line on stdout is the result as JSON."""
    parser = argparse.ArgumentParser(prog="tunewright_workloads.evaluate", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE")
    args = parser.parse_args(argv)
    progress = None
    try:
        config = configs.load(configs.EvaluateConfig, args.config)
        progress = config.progress
        evaluate(config)
    except UserError as error:
        print(error.text(), file=sys.stderr, flush=True)
        ProgressFile(progress).write(Progress(stage="evaluate", message=error.text()[:1000]))
        return exits.BAD_INPUT
    except OSError as error:
        told = str(error) if isinstance(error, storage.StorageError) else machine(error)
        if told is None:
            raise
        print(told, file=sys.stderr, flush=True)
        return exits.RETRY
    return exits.DONE


def measure(config: configs.EvaluateConfig, directory: Path, arch: Architecture, batches: Batches) -> float:
    """The loss by the program of the accelerator: PyTorch on GPUs, JAX elsewhere."""
    if accelerator(config.mesh.accelerator, "mesh.accelerator").kind == "gpu":
        from tunewright_workloads.gpu import validation

        return validation.published_loss(directory, batches, arch.window, config.compute_dtype)
    from tunewright_workloads.train import program

    return program.published_loss(directory, arch, batches, config.mesh, config.compute_dtype)


def evaluate(config: configs.EvaluateConfig) -> float:
    """The token-weighted mean loss, nats. Raises UserError when it is above the limit."""
    if not config.dataset.validation:
        raise UserError(
            Fault("dataset.validation", "is required to evaluate", None, "Name rows that are not trained on.")
        )
    if faults := meshes.rows(config.mesh.accelerator, config.dataset.max_length):
        raise UserError(faults)
    work = Path(config.work)
    directory = storage.localize(config.model, work, place="model")
    arch, words = architecture.read(directory), tokenizer.load(directory)
    sources = dataset.locate(config.dataset.validation, work, "dataset.validation")
    rows = dataset.build(sources, words, config.dataset, what="dataset.validation")
    d = config.dataset
    batches = Batches(
        rows, config.batch_size, d.max_length, d.packing, shuffle=False, pad_id=words.pad_id,
        lanes=meshes.lanes(config.mesh.accelerator),
    )  # fmt: skip

    loss = measure(config, directory, arch, batches)
    limit = config.max_eval_loss
    result = {"evalLoss": loss, "maxEvalLoss": limit, "rows": len(rows), "tokens": rows.trained}
    print(json.dumps(result), flush=True)
    done = limit is None or loss <= limit
    text = f"validation loss {loss:.4f}" + ("" if limit is None else f", limit {limit}")
    ProgressFile(config.progress).write(Progress(stage="evaluate", message=text, eval_loss=loss, done=done))
    if not done:
        raise UserError(
            Fault(
                "evaluation.maxEvalLoss",
                f"the model's validation loss must be at most {limit}",
                f"{loss:.4f}",
                "Train longer or on more data, or raise the limit. The model is not published.",
            )
        )
    return loss


if __name__ == "__main__":
    sys.exit(main())
