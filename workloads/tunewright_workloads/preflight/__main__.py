"""`python -m tunewright_workloads.preflight --config FILE`: does the training step fit, before a slice is bought.

By arithmetic always; where libtpu is installed and the slice is a TPU's, by compiling the very step
for it (minutes of CPU; --no-compile leaves it out). The result is one JSON document on stdout, the
compiler's seconds in it are a model's and not measured.

Exit codes: 0 it fits, 2 it does not or cannot work, with the numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from tunewright_workloads.contract import configs, exits
from tunewright_workloads.contract.configs import PreflightConfig
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.preflight import compiler, static

GIB = 2**30
SMALLER = "Use a smaller training.microBatchSize or dataset.maxLength, or a larger mesh.topology."


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tunewright_workloads.preflight", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args(argv)
    result: dict[str, Any] = {}
    try:
        config = configs.load(PreflightConfig, args.config)
        checked = static.check(config)
        result = {"job": config.job, "model": config.model.name, **checked.record(), "compiled": None}
        checked.refuse()
        why = "--no-compile" if args.no_compile else reason(config)
        if why is None:
            result["compiled"] = compiled(config, checked)
        else:
            result["notCompiled"] = why
    except UserError as error:
        result |= {"fits": False, "faults": [str(fault) for fault in error.faults]}
        print(json.dumps(result), flush=True)
        print(error.text(), file=sys.stderr, flush=True)
        return exits.BAD_INPUT
    except KeyboardInterrupt:
        return exits.TERMINATED
    print(json.dumps(result), flush=True)
    return exits.DONE


def reason(config: PreflightConfig) -> str | None:
    """Why the step cannot be compiled here, or None."""
    if config.mesh.accelerator not in compiler.RATES:
        return f"no compiler for {config.mesh.accelerator} here"
    return None if compiler.available() else compiler.MISSING


def compiled(config: PreflightConfig, checked: static.Checked) -> dict[str, Any]:
    """The step by the compiler. Raises UserError with its numbers when it does not fit."""
    accelerator, topology = config.mesh.accelerator, config.mesh.topology or ""
    devices = compiler.devices(accelerator, topology)
    from tunewright_workloads.preflight import aot

    step = aot.trace(
        checked.arch,
        config.adapter,
        config.training,
        devices,
        accelerator=accelerator,
        fsdp=checked.fsdp,
        tp=checked.tp,
        length=checked.length,
        kept=checked.kept,
    )
    try:
        found = aot.measure(step)
    except compiler.TooLarge as error:
        said = error.faults[0].value
        raise UserError(Fault("training", "does not fit, says the compiler", said, SMALLER)) from error
    record = {
        "argumentsGib": round(found.memory.arguments / GIB, 2),
        "temporariesGib": round(found.memory.temporaries / GIB, 2),
        "peakGib": round(found.memory.peak / GIB, 2),
        "peakShare": round(found.share, 4),
        "modelledStepSeconds": round(found.seconds, 4),
        "modelledExposedSeconds": round(found.exposed, 4),
        "modelledMfu": round(found.mfu, 4),
        "compileSeconds": round(found.compile_seconds, 1),
    }
    if found.share > 1:
        raise UserError(
            Fault(
                "training",
                f"does not fit, says the compiler: {record['argumentsGib']} GiB of arguments and "
                f"{record['temporariesGib']} GiB of temporaries on a chip of {found.limit / GIB:.2f} GiB",
                None,
                SMALLER,
            )
        )
    return record


if __name__ == "__main__":
    sys.exit(main())
