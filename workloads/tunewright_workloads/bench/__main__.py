"""Measures an OpenAI endpoint: by `--config FILE`, or alone by its URL and options."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tunewright_workloads.bench import run, table
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import BenchConfig, load, parse
from tunewright_workloads.contract.faults import Fault, UserError, show

log = logging.getLogger("tunewright.bench")


_OPTIONS: dict[str, tuple[type, str]] = {
    "model": (str, "served name; default: the only one that the server lists"),
    "input-tokens": (int, "of a prompt"),
    "output-tokens": (int, "of an answer"),
    "requests": (int, "of one measurement; a p99 needs 200"),
    "warmup": (int, "requests before it that do not count"),
    "slo-ttft-ms": (float, "limit of the time to the first token, for the goodput"),
    "slo-tpot-ms": (float, "limit of the time a token after it, for the goodput"),
    "timeout": (float, "seconds that one request may take"),
    "seed": (int, "of arrivals and prompts"),
    "accelerator": (str, "what the server runs on: v6e, h100, cpu, ..."),
    "topology": (str, "of its TPU slice"),
    "count": (int, "of its GPUs"),
    "provisioning": (str, "how its nodes were obtained, for the price: onDemand, spot, ..."),
    "params": (float, "parameters a token passes through: flags a first token that is too fast to be true"),
    "output": (str, "file of the report (default: bench.json)"),
}
"""Command line options that are fields of BenchConfig."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tunewright bench", description=__doc__)
    made.add_argument("url", nargs="?", help="of the server, http://host:8000")
    made.add_argument("--config", help="a BenchConfig as JSON; instead of the URL and the options")
    made.add_argument(
        "--rate",
        type=float,
        action="append",
        dest="rates",
        help="requests a second; give it again for a sweep",
    )
    made.add_argument(
        "--percentile", type=int, action="append", dest="percentiles", help="50, 90 or 99: refused when the requests are too few"
    )  # fmt: skip
    for name, (kind, text) in _OPTIONS.items():
        made.add_argument(f"--{name}", type=kind, help=text, metavar=name.rsplit("-", 1)[-1].upper())
    return made


def config_of(options: argparse.Namespace) -> BenchConfig:
    """The configuration from a file or from options. Raises UserError with every fault."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if path := given.pop("config", None):
        if given:
            names = ", ".join(sorted(given))
            raise UserError(Fault("--config", f"holds everything: leave out {names}"))
        return load(BenchConfig, path)
    if "url" not in given:
        raise UserError(Fault("URL", "is required (or --config FILE)"))
    given.setdefault("output", "bench.json")
    if "model" not in given:
        _reachable(given["url"])
        given["model"] = run.only_model(given["url"])
    return parse(BenchConfig, given, "command line")


def _reachable(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        fix = f"Write http://{url}." if url and "://" not in url else None
        raise UserError(Fault("URL", "must be http://host:port or https://host", show(url), fix))


def _target(output: str) -> Path:
    """Where the report goes, known to be writable: a measurement of an hour must not be lost at its end."""
    path = Path(output.removeprefix("file://"))
    if "://" in output and not output.startswith("file://"):
        raise UserError(Fault("output", "must be a path or a file:// URI", show(output)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as error:
        raise UserError(
            Fault("output", f"cannot be written: {error.strerror}", show(output), "Choose another place.")
        ) from None
    return path


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = config_of(options)
        _reachable(config.url)
        path = _target(config.output)
        report = run.run(config)
    except UserError as error:
        print(error.text(), file=sys.stderr)
        return exits.BAD_INPUT
    except KeyboardInterrupt:
        print("stopped: no report", file=sys.stderr)
        return 128 + signal.SIGINT
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return exits.RETRY
    # Whole or not at all: a sidecar may be waiting for this file.
    temporary = _beside(path)
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
