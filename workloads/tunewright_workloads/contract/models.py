"""The catalog of models: what is known of each Gemma 4 before any file is read.

Shapes come from `config.json` and the tensor list of each checkpoint; a custom model's are read
from its own `config.json` by the workload, and never guessed.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show


class ModelSpec(BaseModel):
    """One Gemma 4 text decoder. Sizes are in elements, the window in tokens."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str = Field(description="Where the base checkpoint is when a spec names none")
    layers: int
    global_every: int = Field(description="Every n-th layer attends globally; the others use the window")
    embed: int = Field(description="D, width of the residual")
    hidden: int = Field(description="F, width of the MLP")
    heads: int
    local_kv_heads: int
    global_kv_heads: int
    head_dim: int = Field(description="of the local (sliding) layers")
    global_head_dim: int
    window: int
    vocab: int
    k_eq_v: bool = Field(description="Global layers project K and V with one matrix")
    kv_shared_layers: int = Field(0, description="Last n layers reuse the K and V of an earlier layer")
    wide_hidden: int | None = Field(None, description="F of the kv-shared layers where it differs")
    ple: int = Field(0, description="Width of the per-layer inputs; 0 without them")
    experts: int = 0
    experts_active: int = 0
    params: float = Field(description="Text parameters in all, in units")
    params_active: float | None = Field(
        None, description="Parameters a token passes through, where it differs"
    )
    max_context: int
    trainable: bool = True
    untrainable_reason: str | None = None

    def global_layers(self) -> list[int]:
        """Indices of the layers with global attention."""
        return [i for i in range(self.layers) if (i + 1) % self.global_every == 0]

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.global_every == 0

    @property
    def max_tensor_parallel(self) -> int:
        """The largest tp that divides every head axis. Source: the kv heads are the limit, not the
        query heads (31B: 4 global kv heads)."""
        kv = math.gcd(self.local_kv_heads, self.global_kv_heads)
        return math.gcd(kv, self.heads)

    def lora_params(self, rank: int, targets: tuple[str, ...] | list[str]) -> int:
        """Adapter parameters for `targets`, in elements.

        K and V of a local layer share one A (Qwix adapts Tunix's fused projection); a K = V layer
        has one adapter for both; kv-shared layers have neither K nor V.
        """
        wanted, total = set(targets), 0
        first_shared = self.layers - self.kv_shared_layers
        for i in range(self.layers):
            glob = self.is_global(i)
            dim = self.global_head_dim if glob else self.head_dim
            kv = self.global_kv_heads if glob else self.local_kv_heads
            hidden = self.wide_hidden if self.wide_hidden and i >= first_shared else self.hidden
            if "q_proj" in wanted:
                total += rank * (self.embed + self.heads * dim)
            if "o_proj" in wanted:
                total += rank * (self.heads * dim + self.embed)
            if i < first_shared and wanted & {"k_proj", "v_proj"}:
                outs = 1 if glob and self.k_eq_v else 2
                total += rank * (self.embed + outs * kv * dim)
            for name in ("gate_proj", "up_proj", "down_proj"):
                if name in wanted:
                    total += rank * (self.embed + hidden)
        return total


_MOE = "its router is wrong in the pinned Tunix (logits differ from the reference by 3.3)"

_ALL = (
    ModelSpec(
        name="gemma-4-31b", source="hf://google/gemma-4-31B-it", layers=60, global_every=6, embed=5376,
        hidden=21504, heads=32, local_kv_heads=16, global_kv_heads=4, head_dim=256, global_head_dim=512,
        window=1024, vocab=262144, k_eq_v=True, params=30.697e9, max_context=262144,
    ),
    ModelSpec(
        name="gemma-4-26b-a4b", source="hf://google/gemma-4-26B-A4B-it", layers=30, global_every=6, embed=2816,
        hidden=2112, heads=16, local_kv_heads=8, global_kv_heads=2, head_dim=256, global_head_dim=512,
        window=1024, vocab=262144, k_eq_v=True, experts=128, experts_active=8, params=25.2e9,
        params_active=3.8e9, max_context=262144, trainable=False, untrainable_reason=_MOE,
    ),
    ModelSpec(
        name="gemma-4-e4b", source="hf://google/gemma-4-E4B-it", layers=42, global_every=6, embed=2560,
        hidden=10240, heads=8, local_kv_heads=2, global_kv_heads=2, head_dim=256, global_head_dim=512,
        window=512, vocab=262144, k_eq_v=False, kv_shared_layers=18, ple=256, params=7.5e9,
        max_context=131072,
    ),
    ModelSpec(
        name="gemma-4-e2b", source="hf://google/gemma-4-E2B-it", layers=35, global_every=5, embed=1536,
        hidden=6144, heads=8, local_kv_heads=1, global_kv_heads=1, head_dim=256, global_head_dim=512,
        window=512, vocab=262144, k_eq_v=False, kv_shared_layers=20, wide_hidden=12288, ple=256, params=4.6e9,
        max_context=131072,
    ),
    ModelSpec(
        name="gemma-4-tiny", source="sample://gemma-4-tiny", layers=4, global_every=4, embed=128, hidden=256,
        heads=4, local_kv_heads=2, global_kv_heads=1, head_dim=32, global_head_dim=64, window=32, vocab=1024,
        k_eq_v=True, params=748e3, max_context=2048,
    ),
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {m.name: m for m in _ALL}
CUSTOM = "custom"
"""The name under which any other checkpoint goes: its architecture is read from its config.json."""


def model(name: str, place: str = "spec.model.name") -> ModelSpec:
    """The catalog's entry. Raises UserError naming `place` and the nearest known name."""
    if name in MODELS:
        return MODELS[name]
    known = [*MODELS, CUSTOM]
    near = nearest(name, known)
    fix = f"Did you mean {near}?" if near else "Use `custom` with `source` for any other Gemma 4 checkpoint."
    raise UserError(Fault(place, f"must be one of {', '.join(known)}", show(name), fix))
