"""`make demo`: fine-tunes the tiny Gemma 4 on its FAQ, serves it, and asks one question before and after.

Fails when the answer after training is not the dataset's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUESTION = "What happens to rows that are too long?"


def expected(question: str) -> str:
    """The dataset's answer."""
    faq = ROOT / "workloads/tunewright_workloads/samples/faq.jsonl"
    for line in faq.read_text(encoding="utf-8").splitlines():
        user, assistant = json.loads(line)["messages"]
        if user["content"] == question:
            return assistant["content"]
    sys.exit(f"the FAQ holds no such question: {question}")


def main() -> int:
    answers = ROOT / ".tunewright" / "demo-answers.json"
    answers.parent.mkdir(exist_ok=True)
    answers.unlink(missing_ok=True)
    command = [
        str(ROOT / ".venv/bin/tunewright"), "run", "-f", str(ROOT / "examples/quickstart.yaml"),
        "--ask", QUESTION, "--compare-base", "--answers", str(answers),
    ]  # fmt: skip
    code = subprocess.run(command, cwd=ROOT).returncode
    if code != 0:
        return code
    after = json.loads(answers.read_text(encoding="utf-8"))["after"]
    want = expected(QUESTION)
    if after.strip() != want:
        print(f"The fine-tuned model answered {after!r}; the dataset says {want!r}.", file=sys.stderr)
        return 1
    print(
        "\nThe answer is the dataset's. Try it yourself: .venv/bin/tunewright run -f examples/quickstart.yaml"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
