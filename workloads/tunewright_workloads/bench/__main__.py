"""`python -m tunewright_workloads.bench --config FILE`."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from pathlib import Path

from tunewright_workloads.bench import run, table
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import BenchConfig, load
from tunewright_workloads.contract.faults import UserError

log = logging.getLogger("tunewright.bench")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tunewright_workloads.bench", description=__doc__)
    parser.add_argument("--config", required=True, help="a BenchConfig as JSON")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = load(BenchConfig, options.config)
        report = run.run(config)
    except UserError as error:
        print(error.text(), file=sys.stderr)
        return exits.BAD_INPUT
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return exits.RETRY
    path = Path(config.output.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a sidecar may be waiting for this file.
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(report.model_dump_json(by_alias=True, exclude_none=True) + "\n", encoding="utf-8")
    temporary.replace(path)
    table.show(report)
    if len(report.points) > 1:
        if importlib.util.find_spec("matplotlib"):
            table.plot(report, path.with_suffix(".png"))
            log.info("plot: %s", path.with_suffix(".png"))
        else:
            log.info("no plot: matplotlib is not installed (extra `bench`)")
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
