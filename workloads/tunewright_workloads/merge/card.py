"""The published model's README: what it is made of, in words, with the hub's front matter."""

from __future__ import annotations

from tunewright_workloads.contract.lineage import Adapter, Base

CARD = "README.md"


def text(base: Base, adapter: Adapter, dtype: str, dataset: str | None) -> str:
    """Markdown. The base is named by its hub repository where it has one."""
    repository = base.source.removeprefix("hf://") if base.source.startswith("hf://") else None
    front = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [tunewright, lora, merged]",
    ]
    if repository:
        front.append(f"base_model: {repository}")
        front.append("base_model_relation: finetune")
    step = "" if adapter.step is None else f", step {adapter.step}"
    rounding = "its own dtype" if dtype == "keep" else dtype
    rows = [
        ("Base", f"`{base.source}`" + (f" at `{base.revision}`" if base.revision else "")),
        ("Base digest", f"`{base.digest}`"),
        ("Adapter", f"`{adapter.source}`{step}"),
        ("Adapter digest", f"`{adapter.digest}`"),
        ("Rank, alpha", f"{adapter.rank}, {adapter.alpha:g}"),
        ("Projections changed", str(adapter.modules)),
    ]
    if dataset:
        rows.append(("Dataset digest", f"`{dataset}`"))
    table = ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    body = f"""\
---

# A fine-tuned model

LoRA merged into its base: `W + alpha / rank * B A`, summed in float32, each sum rounded once to
{rounding}. Every other tensor, the configuration, the tokenizer and the chat template are the
base's, byte for byte; the base's license and terms of use apply.

{chr(10).join(table)}

`tunewright.json` holds the same record with the sha256 of every file. Check it with
`tunewright verify URI`.
"""
    return "\n".join([*front, body])
