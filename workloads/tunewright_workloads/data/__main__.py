"""`python -m tunewright_workloads.data FILE...`: is this dataset fit to train on, and what is in it?"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tunewright_workloads.contract import exits, models, uris
from tunewright_workloads.contract.configs import DatasetConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.data import batches, dataset, report, tokenizer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tunewright data", description=__doc__)
    parser.add_argument("train", nargs="+", metavar="FILE", help="path or URI of training data")
    parser.add_argument("--validation", nargs="*", default=[], metavar="FILE")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokenizer", metavar="DIR", help="checkpoint directory with tokenizer.json")
    source.add_argument("--model", help="name in the catalog, whose default source is used")
    parser.add_argument("--format", default="auto", choices=("auto", "messages", "prompt-completion", "text"))
    parser.add_argument("--max-length", type=_length, default=3072, metavar="TOKENS")
    parser.add_argument("--overlong", default="drop", choices=("drop", "truncate", "fail"))
    parser.add_argument("--loss-on", default="assistant", choices=("assistant", "completion", "all"))
    parser.add_argument("--thinking", action="store_true", help="train on what answers think")
    parser.add_argument("--no-packing", action="store_true", help="one example a row")
    parser.add_argument(
        "--batch", type=_positive, default=16, metavar="ROWS", help="training.globalBatchSize"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=float, default=1.0)
    length.add_argument("--steps", type=_positive)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--work", help="directory for downloads")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _length(text: str) -> int:
    value = int(text)
    if value < 8:
        raise argparse.ArgumentTypeError("must be at least 8")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 when the data cannot be trained on."""
    args = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="tunewright-data-") as scratch:
            print(_run(args, Path(args.work or scratch)))
    except UserError as error:
        if args.json:
            print(json.dumps({"faults": error.as_json()}, ensure_ascii=False, indent=2))
        print(error.text(), file=sys.stderr)
        return exits.BAD_INPUT
    except OSError as error:  # a StorageError, a full disk: later it may work
        print(error, file=sys.stderr)
        return exits.RETRY
    return exits.DONE


def _run(args: argparse.Namespace, work: Path) -> str:
    from tunewright_workloads import storage

    if args.tokenizer:
        directory = Path(args.tokenizer)
    else:
        directory = storage.localize(models.model(args.model, "--model").source, work, place="--model")
    config = DatasetConfig(
        train=tuple(map(uris.local, args.train)), validation=tuple(map(uris.local, args.validation)), format=args.format,
        max_length=args.max_length, overlong=args.overlong, packing=not args.no_packing, loss_on=args.loss_on,
        thinking=args.thinking,
    )  # fmt: skip
    words = tokenizer.load(directory)
    train = dataset.build(dataset.locate(config.train, work, "FILE"), words, config, what="the training data")
    validation = None
    if config.validation:
        sources = dataset.locate(config.validation, work, "--validation")
        validation = dataset.build(sources, words, config, what="the validation data")
    run = batches.Batches(train, args.batch, config.max_length, config.packing, args.seed)
    found = report.describe(train, validation, config, run, epochs=args.epochs, steps=args.steps)
    return json.dumps(found, ensure_ascii=False, indent=2) if args.json else report.text(found)


if __name__ == "__main__":
    sys.exit(main())
