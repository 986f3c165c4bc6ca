"""`python -m tunewright_workloads.serve --config FILE`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from tunewright_workloads import storage
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import ServeConfig, load
from tunewright_workloads.contract.faults import UserError, machine
from tunewright_workloads.serve.verify import verify
from tunewright_workloads.serve.vllm import VllmError
from tunewright_workloads.storage.faults import StorageError

log = logging.getLogger("tunewright.serve")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tunewright_workloads.serve", description=__doc__)
    parser.add_argument("--config", required=True, help="a ServeConfig as JSON")
    parser.add_argument(
        "--no-hashes", action="store_true", help="check the sizes of the model's files, not their digests"
    )
    parser.add_argument(
        "--warm-up", action="store_true", help="fill an empty compile cache, then end (engine vllm)"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = load(ServeConfig, options.config)
        if options.warm_up:
            from tunewright_workloads.serve import warm

            warm.fill(config, hashes=not options.no_hashes)
        else:
            serve(config, hashes=not options.no_hashes)
    except UserError as error:
        print(error.text(), file=sys.stderr)
        return exits.BAD_INPUT
    except (StorageError, VllmError) as error:
        print(error, file=sys.stderr)
        return exits.RETRY
    except OSError as error:
        told = machine(error)
        if told is None:
            raise
        print(told, file=sys.stderr)
        return exits.RETRY
    return exits.DONE


def serve(config: ServeConfig, *, hashes: bool = True) -> None:
    """Serves until a signal ends it. Raises UserError for a model or a setting that cannot be served."""
    work = Path(config.work)
    work.mkdir(parents=True, exist_ok=True)
    if config.engine == "vllm":
        from tunewright_workloads.serve import vllm

        vllm.run(config, hashes=hashes)
        return
    directory = storage.localize(config.model, work, revision=config.revision, place="model")
    if config.require_manifest:
        verify(directory, hashes=hashes)
        log.info("%s: every file is as its manifest says", directory)

    from tunewright_workloads.serve import engine, server

    server.run(
        lambda: engine.load(config, directory),
        host=config.host,
        port=config.port,
        drain=config.drain_seconds,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A load that a signal interrupted has threads in the middle of a compilation: nothing to wait for.
    os._exit(code)
