"""Does a server answer as the model it should serve?

A healthy server proves nothing of its weights: engines start without a warning on a file with a
tensor missing. So the gate asks what the merge recorded: the model list must hold the name, the
recorded prompts must become the recorded tokens, and greedy generation must follow the recorded
tokens with the recorded log-probabilities, to within the rounding of the served type.

    python -m tunewright_workloads.serve.gate --url http://HOST:8000 --model-dir DIRECTORY-OR-URI
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import UserError, show
from tunewright_workloads.contract.lineage import Manifest, Probe
from tunewright_workloads.serve.verify import verify, verify_remote
from tunewright_workloads.storage.faults import StorageError

Post = Callable[[str, dict[str, Any] | None], dict[str, Any]]
"""(path, body or None for GET) -> the answer's JSON."""


@dataclass(frozen=True)
class Tolerance:
    """How far a log-probability may be off, per unit of doubt: one token's, and the mean of all tokens'.

    A token of probability p may be off by `one * max(1 - p, CERTAIN)` nats. An error of the logits
    moves a log-probability by (1 - p) times itself, so that a model that is sure of its answers, as a
    fine-tuned one is, would hide any fault from a tolerance that did not shrink with its doubt.
    """

    one: float
    mean: float


CERTAIN = 0.05
"""Least doubt that counts: below it the rounding of the logits themselves shows."""

TOLERANCES = {
    # Two programs of the same arithmetic: 2e-4 nats seen between vLLM, transformers and JAX.
    "float32": Tolerance(0.01, 0.004),
    # The record is float32 on the served weights, so this is the rounding of activations alone.
    "bfloat16": Tolerance(1.0, 0.15),
    "float16": Tolerance(0.5, 0.08),
    # A cache or weights in 8 bits add their own.
    "fp8": Tolerance(2.0, 0.3),
}

ALTERNATIVES = 20
"""Log-probabilities asked for a token: where greedy takes another path the recorded one must be near."""


@dataclass
class Report:
    """What the gate found. `failures` are sentences for a condition; empty means that it passed.

    worst, mean: of |difference in nats| / doubt, see `Tolerance`.
    """

    url: str
    model: str
    dtype: str
    probes: int = 0
    tokens: int = 0
    worst: float = 0.0
    mean: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures

    def text(self) -> str:
        if self.passed:
            return (
                f"passed: {self.probes} prompts, {self.tokens} tokens, log-probabilities off by "
                f"{self.mean:.2g} per unit of doubt in the mean and {self.worst:.2g} at most ({self.dtype})"
            )
        return "failed: " + "; ".join(self.failures)

    def as_json(self) -> str:
        return json.dumps({"passed": self.passed, "text": self.text(), **asdict(self)}, indent=2) + "\n"


class Unreachable(RuntimeError):  # noqa: N818  # the server's state, not a mistake
    """The server does not answer; later it may."""


def check(post: Post, manifest: Manifest, *, model: str, dtype: str, url: str = "") -> Report:
    """Asks the server behind `post` what the merge recorded. Raises Unreachable."""
    report = Report(url=url, model=model, dtype=dtype)
    cards = {card.get("id"): card for card in post("/v1/models", None).get("data", [])}
    if model not in cards:
        report.failures.append(f"the model list holds {show(list(cards))} and not {show(model)}")
        return report
    # The small engine says what it computes in: less than asked for where memory is short.
    said = TOLERANCES.get(cards[model].get("dtype", dtype), TOLERANCES[dtype])
    if said.one > TOLERANCES[dtype].one:
        report.dtype = dtype = cards[model]["dtype"]
    if not manifest.probes:
        report.failures.append(
            "the manifest holds no probes, so that nothing proves which weights answer: "
            "merge where the model fits in memory, or set rollout.gate to false"
        )
        return report
    differences: list[float] = []
    tolerance = TOLERANCES[dtype]
    for number, probe in enumerate(manifest.probes, 1):
        name = f"prompt {number} ({show(probe.prompt)})"
        try:
            failure = _tokenized(post, model, probe) or _generated(post, model, probe, tolerance, differences)
        except _Refusal as error:
            failure = f"the server refused it: {error}"
        if failure:
            report.failures.append(f"{name}: {failure}")
    report.probes, report.tokens = len(manifest.probes), len(differences)
    if differences:
        report.worst, report.mean = max(differences), sum(differences) / len(differences)
        if not report.failures and report.mean > tolerance.mean:
            report.failures.append(
                f"log-probabilities of all prompts are off by {report.mean:.2g} per unit of doubt in the "
                f"mean, where {tolerance.mean} is allowed for {dtype}"
            )
    return report


def _tokenized(post: Post, model: str, probe: Probe) -> str | None:
    """What is wrong with how the server tokenizes the prompt's text, or None."""
    body = {
        "model": model,
        "prompt": probe.prompt,
        "max_tokens": 1,
        "temperature": 0,
        "add_special_tokens": False,  # the text holds <bos> itself
        "return_token_ids": True,
    }
    answer = post("/v1/completions", body)
    tokens = answer["choices"][0].get("prompt_token_ids")
    if tokens is None:  # an engine without the extension still counts
        count = answer["usage"]["prompt_tokens"]
        if count == len(probe.prompt_tokens):
            return None
        return f"its tokenizer makes {count} tokens of it and not {len(probe.prompt_tokens)}"
    if tokens == probe.prompt_tokens:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(tokens, probe.prompt_tokens, strict=False)) if a != b),
        min(len(tokens), len(probe.prompt_tokens)),
    )
    return (
        f"its tokenizer makes other tokens of it from token {at}: "
        f"{tokens[at : at + 4]} and not {probe.prompt_tokens[at : at + 4]}"
    )


def _generated(
    post: Post, model: str, probe: Probe, tolerance: Tolerance, differences: list[float]
) -> str | None:
    """What is wrong with the server's greedy generation, or None. Adds the size of each difference.

    Where the server's best token is another one but the recorded one is as likely as recorded, two
    tokens are about equal and rounding decides: the gate follows the recorded path from there on.
    """
    done = 0
    while done < len(probe.tokens):
        body = {
            "model": model,
            "prompt": probe.prompt_tokens + probe.tokens[:done],
            "max_tokens": len(probe.tokens) - done,
            "temperature": 0,
            "logprobs": ALTERNATIVES,
            "ignore_eos": True,
            "return_tokens_as_token_ids": True,
        }
        logprobs = post("/v1/completions", body)["choices"][0]["logprobs"]
        for got, alternatives in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
            expected, recorded = probe.tokens[done], probe.logprobs[done]
            found = alternatives.get(f"token_id:{expected}")
            if found is None or not math.isfinite(found):
                best = got.removeprefix("token_id:")
                return (
                    f"token {done} must be {expected} (log-probability {recorded:.3f}); the server says "
                    f"{best} ({alternatives[got]:.3f}) and {expected} is not among its {len(alternatives)} best"
                )
            off, doubt = abs(found - recorded), max(1 - math.exp(recorded), CERTAIN)
            differences.append(off / doubt)
            if off > tolerance.one * doubt:
                return (
                    f"token {done} ({expected}) has log-probability {found:.4f} and not {recorded:.4f}: "
                    f"off by {off:.2g} where {tolerance.one * doubt:.2g} is allowed"
                )
            done += 1
            if got != f"token_id:{expected}":
                break
    return None


class _Refusal(Exception):  # noqa: N818
    """An HTTP error that trying again does not heal."""


def client(url: str, timeout: float = 300, patience: float = 60) -> Post:
    """Speaks to a server; while it refuses connections or is loading (503), for `patience` seconds.

    Never through a proxy: the server is a Service of the cluster or a port of this machine.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url.rstrip("/") + path, data=data, headers={"Content-Type": "application/json"}
        )
        end = time.monotonic() + patience
        while True:
            try:
                with opener.open(request, timeout=timeout) as response:
                    answer: dict[str, Any] = json.load(response)
                    return answer
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")[:500]
                if error.code not in (429, 502, 503, 504):
                    raise _Refusal(f"{error.code}: {text}") from None
                reason = f"{error.code}: {text}"
            except (OSError, ValueError) as error:
                reason = str(error)
            if time.monotonic() > end:
                raise Unreachable(f"{url}{path} does not answer: {reason}")
            time.sleep(1)

    return post


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 passed; 2 the server answers wrong or the directory is not what its manifest says;
    1 the server does not answer."""
    parser = argparse.ArgumentParser(
        prog="tunewright_workloads.serve.gate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--url", required=True, help="of the server, without /v1")
    parser.add_argument("--model-dir", required=True, help="directory or URI of what it should serve")
    parser.add_argument("--name", help="served name; default: the only one that the server lists")
    parser.add_argument(
        "--dtype", choices=sorted(TOLERANCES), default="bfloat16", help="of weights or KV cache"
    )
    parser.add_argument("--no-hashes", action="store_true", help="check sizes of files, not digests")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for an answer")
    parser.add_argument("--report", type=Path, help="file to write the findings to, as JSON")
    options = parser.parse_args(arguments)
    report = Report(options.url, options.name or "", options.dtype)
    try:
        where = options.model_dir.removeprefix("file://")
        if "://" in where:
            manifest = verify_remote(where, "--model-dir")
        else:
            manifest = verify(Path(where), hashes=not options.no_hashes, place="--model-dir")
        post = client(options.url, patience=options.patience)
        name = options.name
        if name is None:
            names = [card["id"] for card in post("/v1/models", None).get("data", [])]
            name = names[0] if names else ""
        report = check(post, manifest, model=name, dtype=options.dtype, url=options.url)
        code = exits.DONE if report.passed else exits.BAD_INPUT
    except UserError as error:
        report.failures, code = [error.text()], exits.BAD_INPUT
    except (Unreachable, _Refusal, StorageError) as error:
        report.failures, code = [str(error)], exits.RETRY
    print(report.text(), file=sys.stdout if report.passed else sys.stderr)
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report.as_json(), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
