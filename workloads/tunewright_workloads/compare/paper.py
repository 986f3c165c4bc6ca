"""The published comparison that this project starts from, re-derived from its own raw inputs.

Source: arXiv 2605.25645 (v1 2026-05-25), Gemma 4 31B LoRA on a v5p-8 against 2 x H100, served on a
v6e-8 and on 2 x H100. Every printed figure is computed again; the ones that do not follow from the
inputs are said to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright_workloads.compare.money import Offer, break_even
from tunewright_workloads.contract.accelerators import accelerator
from tunewright_workloads.contract.models import model

STEPS, BATCH, LENGTH, MEAN_TOKENS = 1244, 8, 3072, 922


@dataclass(frozen=True)
class Side:
    """Raw inputs of one side: hours of training, unpadded tokens/s, chips and $ an hour."""

    name: str
    hours: float
    tokens_per_second: float
    chip: str
    chips: int
    train_price: float
    serve_chip: str
    serve_chips: int
    serve_price: float

    @property
    def train_cost(self) -> float:
        return round(self.hours * self.train_price, 2)

    def offer(self) -> Offer:
        return Offer(self.name, self.train_cost, self.serve_price, self.tokens_per_second * self.hours * 3600)

    def mfu(self, tokens_per_second: float) -> float:
        """At 4 N FLOP a token, of the training slice's bf16 peak."""
        peak = accelerator(self.chip).peak_flops * self.chips
        return 4 * model("gemma-4-31b").params * tokens_per_second / peak

    def floor_ms(self, prompt_tokens: int) -> float:
        """2 N FLOP a prompt token at the serving slice's bf16 peak: no first token comes sooner."""
        peak = accelerator(self.serve_chip).peak_flops * self.serve_chips
        return 2 * model("gemma-4-31b").params * prompt_tokens / peak * 1e3


TPU = Side("v5p-8 + v6e-8", 3.34, 763, "v5p", 4, 16.80, "v6e", 8, 21.52)
GPU = Side("2 x H100", 5.39, 486, "h100", 2, 22.12, "h100", 2, 22.12)

TTFT = {512: (45, 51), 1024: (49, 58), 4096: (61, 1443), 8192: (1013, 7202)}
"""Median TTFT in ms by prompt tokens, (TPU, GPU), lowest printed rate."""

PROMPTS = 30
"""Requests behind each of its serving figures."""


@dataclass(frozen=True)
class Claim:
    """One printed figure: as printed, as derived from the inputs with the same digits, and how."""

    what: str
    printed: str
    derived: str
    how: str

    @property
    def holds(self) -> bool:
        return self.printed == self.derived


def claims() -> list[Claim]:
    """Every figure of the paper's tables that its inputs determine."""
    t, g = TPU.offer(), GPU.offer()
    padded = STEPS * BATCH * LENGTH / (TPU.hours * 3600)
    totals = [
        Claim(
            f"train once, serve {h} h: {side}",
            f"${printed}",
            f"${offer.total(h):.2f}",
            "training $ + hours x $/h",
        )
        for h, row in ((1, ("77.63", "141.35")), (8, ("228.27", "296.19")), (24, ("572.59", "650.11")))
        for side, printed, offer in (("TPU", row[0], t), ("GPU", row[1], g))
    ]
    return [
        Claim("training speed-up", "1.61x", f"{GPU.hours / TPU.hours:.2f}x", "hours / hours"),
        Claim("training cost, TPU", "$56.11", f"${TPU.train_cost:.2f}", "3.34 h x $16.80"),
        Claim("training cost, GPU", "$119.23", f"${GPU.train_cost:.2f}", "5.39 h x $22.12"),
        Claim("training cost ratio", "2.12x", f"{GPU.train_cost / TPU.train_cost:.2f}x", "$ / $"),
        Claim("$/1M tokens, TPU", "6.10", f"{t.per_million():.2f}", "training $ / (tokens/s x hours)"),
        Claim("$/1M tokens, GPU", "12.68", f"{g.per_million():.2f}", "training $ / (tokens/s x hours)"),
        Claim("MFU of unpadded tokens, TPU", "5.1 %", f"{TPU.mfu(TPU.tokens_per_second):.1%}".replace("%", " %"), "4 N x tokens/s / peak"),
        Claim("MFU counting padding, TPU", "17 %", f"{TPU.mfu(padded):.0%}".replace("%", " %"), "4 N x (1,244 x 8 x 3,072 / 3.34 h) / peak"),
        Claim("MFU of unpadded tokens, GPU", "3.0 %", f"{GPU.mfu(GPU.tokens_per_second):.1%}".replace("%", " %"), "4 N x tokens/s / peak"),
        Claim("padding share of a batch", "70 %", f"{1 - MEAN_TOKENS / LENGTH:.0%}".replace("%", " %"), "1 - 922 / 3,072"),
        *totals,
        Claim("train + serve 1 h ratio", "1.82x", f"{g.total(1) / t.total(1):.2f}x", "GPU $ / TPU $"),
        Claim("train + serve 8 h ratio", "1.30x", f"{g.total(8) / t.total(8):.2f}x", "GPU $ / TPU $"),
        Claim("train + serve 24 h ratio", "1.135x", f"{g.total(24) / t.total(24):.3f}x", "GPU $ / TPU $"),
    ]  # fmt: skip


def remarks() -> list[str]:
    """What a reader must know beside the figures, each with its numbers."""
    t, g = TPU.offer(), GPU.offer()
    crossing = break_even(t, g)
    limit = GPU.serve_price / TPU.serve_price
    lines = [
        (
            f"Tokens: tokens/s x hours gives {t.tokens / 1e6:.2f} M on TPU and {g.tokens / 1e6:.2f} M on GPU, "
            f"so the two runs did not read the same text; by tokens/s the speed-up is {TPU.tokens_per_second / GPU.tokens_per_second:.2f}x."
        ),
        "Steps: the GPU code runs 625 steps at batch 16, the TPU run 1,244 steps at batch 8.",
        f"Padding: {STEPS * BATCH * LENGTH / 1e6:.1f} M positions were computed for {STEPS * BATCH * MEAN_TOKENS / 1e6:.1f} M useful tokens.",
        "Adapters: the TPU recipe leaves K of the ten K = V layers without an adapter, the GPU recipe adapts it.",
        (
            f"Break-even: {'none, TPU is cheaper to train and to serve' if crossing is None else f'{crossing:.1f} h'}; "
            f"the ratio falls towards {limit:.3f}x as serving goes on, because $/h of serving is nearly equal."
        ),
        f"Prompts: {PROMPTS} a run; a p99 needs 1,000.",
        (
            f"Floor: a 16,384-token prompt cannot have a first token before {TPU.floor_ms(16384):.0f} ms on the v6e-8 and "
            f"{GPU.floor_ms(16384):.0f} ms on 2 x H100; the published 16k TTFTs lie below, so a prefix cache answered."
        ),
    ]
    for tokens, (tpu, gpu) in TTFT.items():
        for side, ms in ((TPU, tpu), (GPU, gpu)):
            floor = side.floor_ms(tokens)
            if ms < floor:
                lines.append(
                    f"Floor: {ms} ms TTFT at {tokens:,} tokens on {side.name} is under {floor:.0f} ms."
                )
    return lines
