"""What a merge records for the gate: with the model in memory, and from one pass over its files."""

from pathlib import Path

import pytest

from support import gcs, merging
from tunewright_workloads.contract.configs import TARGETS
from tunewright_workloads.gemma import tiny
from tunewright_workloads.merge import probe, publish, verify

pytestmark = pytest.mark.pipeline


def test_probes_are_recorded_either_way_and_verify_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path / "base")
    merging.save(
        tmp_path / "train", tmp_path / "base", merging.arrays(tmp_path / "base"), targets=list(TARGETS)
    )
    whole = publish.merge(
        merging.config(tmp_path / "base", tmp_path / "train", tmp_path / "out", tmp_path / "work"),
        probes=True,
    )
    assert len(whole.probes) > 4 and all(len(p.tokens) > 4 for p in whole.probes)
    monkeypatch.setattr(probe, "fits", lambda _: "as on a small machine")
    with gcs.server() as backend, gcs.proxy(backend) as proxy:
        for name, value in gcs.environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        config = merging.config(tmp_path / "base", tmp_path / "train", "gs://bucket/out", tmp_path / "work2")
        layered = publish.merge(config, probes=True)
        assert len(layered.probes) > 4 and all(len(p.tokens) == 1 for p in layered.probes)
        assert layered.files == whole.files
        found = verify.verify("gs://bucket/out", tmp_path / "check")
    assert not found.faults and not found.skipped, found.text()
    whole_by_prompt = {tuple(p.prompt_tokens): p for p in whole.probes}
    both = [p for p in layered.probes if tuple(p.prompt_tokens) in whole_by_prompt]
    assert both
    for p in both:
        other = whole_by_prompt[tuple(p.prompt_tokens)]
        assert p.tokens[0] == other.tokens[0]
        assert abs(p.logprobs[0] - other.logprobs[0]) < 1e-3


def test_a_machine_too_small_for_a_layer_records_none_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(tmp_path / "base")
    merging.save(tmp_path / "train", tmp_path / "base", merging.arrays(tmp_path / "base"))
    monkeypatch.setattr(probe, "available", lambda: 10**6)
    config = merging.config(tmp_path / "base", tmp_path / "train", tmp_path / "out", tmp_path / "work")
    assert publish.merge(config, probes=True).probes == []
    assert "no probes are recorded" in capsys.readouterr().err
