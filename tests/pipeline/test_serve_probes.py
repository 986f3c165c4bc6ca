"""What a merge records: the same whether the model was in memory or passed through layer by layer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support import merged
from tunewright_workloads import storage
from tunewright_workloads.contract.models import MODELS
from tunewright_workloads.data import tokenizer
from tunewright_workloads.gemma import architecture, tiny
from tunewright_workloads.gemma.checkpoint import Checkpoint
from tunewright_workloads.serve import probes
from tunewright_workloads.serve.streamed import Far, Streamed

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module", params=["dense", "ple"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    tiny.write(root / "base", variant=request.param, multimodal=request.param == "dense")
    return merged.merge(root / "base", root / "model")


def test_both_ways_agree_and_every_prompt_can_be_asked_for_again(directory: Path) -> None:
    kept = probes.record(directory)
    assert len(kept) == len(probes.QUESTIONS) + 1
    assert {len(p.tokens) for p in kept} == {len(p.logprobs) for p in kept} == {probes.TOKENS}
    window = architecture.read(directory).window
    assert max(len(p.prompt_tokens) for p in kept) > window

    store = storage.store(f"file://{directory}")
    streamed = probes.streamed(directory, Far(store))
    assert len(streamed) >= 3 * len(probes.QUESTIONS)
    words = tokenizer.load(directory)
    for probe in [*kept, *streamed]:
        assert words.encode(probe.prompt) == probe.prompt_tokens
    whole = {tuple(p.prompt_tokens): p for p in streamed}
    for probe in kept[:-1]:
        same = whole[tuple(probe.prompt_tokens)]
        assert same.tokens == probe.tokens[:1]
        assert same.logprobs == pytest.approx(probe.logprobs[:1], abs=1e-4)

    # The whole record, place by place, from one pass: the window and the cache hold in both.
    rows = [p.prompt_tokens + p.tokens for p in kept]
    places = [list(range(len(p.prompt_tokens) - 1, len(r) - 1)) for p, r in zip(kept, rows, strict=True)]
    seen: list[tuple[int, int]] = []
    arch = architecture.read(directory)
    found = Streamed(arch, Checkpoint.open(directory), lambda *at: seen.append(at)).next(rows, places)
    for probe, row in zip(kept, found, strict=True):
        assert [n.token for n in row] == probe.tokens
        assert [n.logprob for n in row] == pytest.approx(probe.logprobs, abs=1e-4)
    assert seen == [(i + 1, arch.layers) for i in range(arch.layers)]


def test_tensors_far_away_are_sliced_like_those_at_hand(directory: Path) -> None:
    near, far = Checkpoint.open(directory), Far(storage.store(f"file://{directory}"))
    assert dict(far.shapes) == dict(near.shapes)
    dice = random.Random(1)
    for name, shape in near.shapes.items():
        index = tuple(slice(*sorted(dice.sample(range(size + 1), 2))) for size in shape)
        assert (far.source(name)[index] == near.source(name)[index]).all(), name


def test_the_memory_of_a_pass_over_31b_is_that_of_a_layer() -> None:
    known = MODELS["gemma-4-31b"]
    arch = architecture.Architecture(
        class_name=architecture.CLASSES[0], layers=known.layers,
        globals=tuple(known.is_global(i) for i in range(known.layers)), embed=known.embed, hidden=known.hidden,
        heads=known.heads, local_kv_heads=known.local_kv_heads, global_kv_heads=known.global_kv_heads,
        head_dim=known.head_dim, global_head_dim=known.global_head_dim, window=known.window, vocab=known.vocab,
        k_eq_v=True,
    )  # fmt: skip
    assert probes.memory(arch, 2) < 4e9 < 0.1 * known.params * 2
