"""`python -m tunewright_workloads.merge`: by `--config FILE`, or alone by `--base --adapter --output`."""

from __future__ import annotations

import os

# Before numpy is imported: the merge has threads of its own, and a product whose sums do not depend
# on the number of cores.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tunewright_workloads.contract import configs, exits, uris
from tunewright_workloads.contract.configs import MergeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show

_DTYPES = ("bfloat16", "float16", "float32", "keep")


def parser() -> argparse.ArgumentParser:
    text = "Merges a LoRA adapter (a training output, or a PEFT directory) into a base checkpoint."
    made = argparse.ArgumentParser("tunewright merge", description=text)
    made.add_argument("--config", type=Path, help="MergeConfig as JSON; instead of the options below")
    made.add_argument("--base", metavar="URI", help="URI or path: checkpoint in Hugging Face format")
    made.add_argument("--revision", default="main", help="of an hf:// base: branch, tag or commit")
    made.add_argument("--adapter", metavar="URI", help="URI or path: training output or PEFT adapter")
    made.add_argument("--step", type=int, help="of a training output; default: the newest committed")
    made.add_argument("--output", metavar="URI", help="URI or path: where the model is published")
    made.add_argument(
        "--dtype", choices=_DTYPES, default="keep", help="of the changed tensors (default: keep)"
    )
    made.add_argument(
        "--max-shard-size", metavar="SIZE", help="bytes, or like 5GB; default: the base's shards"
    )
    made.add_argument("--work", type=Path, help="scratch directory; default: a temporary one")
    made.add_argument("--export", action="store_true", help="write the adapter in PEFT's format instead")
    made.add_argument("--no-probes", action="store_true", help="record no greedy tokens for the serving gate")
    return made


def config_of(options: argparse.Namespace, work: str) -> MergeConfig:
    """The configuration from a file or from options. Raises UserError with every fault."""
    if options.config is not None:
        given = [
            n for n in ("base", "adapter", "output", "max_shard_size") if getattr(options, n) is not None
        ]
        if given:
            rule = (
                f"--config holds everything: leave out {', '.join('--' + n.replace('_', '-') for n in given)}"
            )
            raise UserError(Fault("--config", rule))
        return configs.load(MergeConfig, options.config)
    missing = [n for n in ("base", "adapter", "output") if getattr(options, n) is None]
    if missing:
        raise UserError([Fault(f"--{n}", "is required (or --config FILE)") for n in missing])
    data: dict[str, Any] = {
        "job": "local/merge", "model": {"name": "custom", "source": uris.local(options.base), "revision": options.revision},
        "adapter": uris.local(options.adapter), "step": options.step, "output": uris.local(options.output), "dtype": options.dtype,
        "maxShardSize": _bytes(options.max_shard_size), "work": work,
    }  # fmt: skip
    return configs.parse(MergeConfig, data, "command line")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "B": 1, "": 1}
    number = text.rstrip("BbGgIiKkMm ")
    try:
        return int(float(number) * units[text[len(number) :].strip().upper()])
    except (ValueError, KeyError, OverflowError):
        raise UserError(
            Fault("--max-shard-size", "must be a number of bytes, or like 5GB", show(text))
        ) from None


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tunewright-merge-") as scratch:
        try:
            config = config_of(options, str(options.work or scratch))
            from tunewright_workloads.merge import memory, publish

            memory.settle()
            if options.export:
                publish.export(config, config.output)
                print(f"exported {config.output}")
                return exits.DONE
            manifest = publish.merge(config, probes=not options.no_probes)
        except UserError as error:
            print(error.text(), file=sys.stderr)
            return exits.BAD_INPUT
        except OSError as error:  # a StorageError, a full disk: later it may work
            print(error, file=sys.stderr)
            return exits.RETRY
    print(
        f"published {config.output}: {len(manifest.files)} files, "
        f"{sum(f.size for f in manifest.files.values()) / 1e9:.2f} GB, "
        f"{manifest.adapter.modules} projections changed"
    )
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
