"""`python -m tunewright_workloads.gpu --config FILE`: the fine-tuning of a TrainConfig in PyTorch.

Starts one process a GPU by itself (`mesh.fsdp` of them). Exit codes as `tunewright_workloads.train`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tunewright_workloads.contract import configs, exits
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gpu import launch
from tunewright_workloads.gpu.check import check
from tunewright_workloads.train.__main__ import main as start

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the base is a directory by then; nothing may reach out


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="tunewright_workloads.gpu", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE")
    path = parser.parse_args(argv).config
    if "RANK" not in os.environ:
        try:
            config = configs.load(configs.TrainConfig, path)
            check(config)
            count = config.mesh.fsdp or 1
        except UserError as error:
            print(error.text(), file=sys.stderr, flush=True)
            return exits.BAD_INPUT
        if count > 1:
            return launch.workers(count, argv)
    return start(argv, program="torch")


if __name__ == "__main__":
    sys.exit(main())
