"""`python -m tunewright_workloads.train --config FILE`: fine-tunes an adapter, resuming where it was.

Exit codes: 0 done (also when it was done before), 2 bad input, 75 stopped by a signal with the
checkpoint saved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tunewright_workloads.contract import configs, exits
from tunewright_workloads.contract.faults import UserError, machine
from tunewright_workloads.contract.progress import Progress, ProgressFile
from tunewright_workloads.data import report as reports
from tunewright_workloads.storage.faults import StorageError
from tunewright_workloads.train import hosts, prepare, published
from tunewright_workloads.train import output as outputs
from tunewright_workloads.train.metrics import say
from tunewright_workloads.train.stop import Stop


def main(argv: Sequence[str] | None = None, program: Literal["jax", "torch"] = "jax") -> int:
    """Returns the exit code. program: which of the two training programs runs the configuration."""
    name = {"jax": "tunewright_workloads.train", "torch": "tunewright_workloads.gpu"}[program]
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE")
    args = parser.parse_args(argv)
    progress = None
    try:
        config = configs.load(configs.TrainConfig, args.config)
        progress = config.progress
        return train(config, program)
    except UserError as error:
        print(error.text(), file=sys.stderr, flush=True)
        ProgressFile(progress).write(Progress(stage="train", message=error.text()[:1000]))
        return exits.BAD_INPUT
    except OSError as error:
        told = str(error) if isinstance(error, StorageError) else machine(error)
        if told is None:
            raise
        print(told, file=sys.stderr, flush=True)
        return exits.RETRY
    except KeyboardInterrupt:
        return exits.TERMINATED


def train(config: configs.TrainConfig, program: Literal["jax", "torch"] = "jax") -> int:
    """Runs the configuration. Raises UserError for whatever the user can mend."""
    chief = hosts.rank(config.mesh.hosts) == 0
    output = outputs.Output(config.output, Path(config.work), chief=chief)
    progress = ProgressFile(config.progress if chief else None)
    progress.write(Progress(stage="train", message="checking the inputs"))
    sources = prepare.sources(config)
    # The two programs keep their checkpoints differently: neither goes on with the other's.
    sources = replace(sources, identity={**sources.identity, "program": program})
    finished = outputs.claim(output, sources.identity, config.job)
    if finished is not None:
        from tunewright_workloads.train.record import summary

        text = f"done before: {summary(finished)}"
        print(f"{config.job} {text}; {output.uri} holds its report", flush=True)
        steps = finished["training"]["steps"]
        artifacts = published.digests(output, program, finished["data"]["digest"]) if chief else None
        progress.write(
            Progress(stage="train", message=text, done=True, step=steps, total_steps=steps, checkpoint=steps,
                     loss=finished["loss"][-1]["loss"], eval_loss=finished.get("evalLoss"),
                     artifacts=artifacts)
        )  # fmt: skip
        return exits.DONE
    run = prepare.prepare(config, sources)
    schedule = config.training
    say(
        reports.text(
            reports.describe(
                run.train,
                run.validation,
                config.dataset,
                run.batches,
                epochs=schedule.epochs,
                steps=schedule.steps,
            )
        )
    )
    if program == "torch":
        from tunewright_workloads.gpu import run as torch_run

        return torch_run.train(run, output, Stop())
    hosts.join(config.mesh.hosts)
    from tunewright_workloads.train.run import Trainer

    stop = Stop()
    trainer = Trainer(run, output, stop)
    try:
        trainer.build()
        return trainer.train()
    finally:
        trainer.close()
        stop.disarm()


if __name__ == "__main__":
    sys.exit(main())
