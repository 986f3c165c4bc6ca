"""The real vLLM loads what we publish: the merged directory, and the exported adapter over the base."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from support import merging
from tunewright_workloads.contract.configs import TARGETS
from tunewright_workloads.contract.lineage import Probe
from tunewright_workloads.gemma import tiny
from tunewright_workloads.merge import probe, publish

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.vllm,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="vLLM is not installed (make install-vllm makes .venv-vllm)"
    ),
]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip


def greedy(work: Path, model: Path, probes: list[Probe], adapter: Path | None = None) -> list[Probe]:
    """What vLLM generates in place of the probes' tokens."""
    multimodal = "ConditionalGeneration" in (model / "config.json").read_text()
    request = {
        "model": str(model), "adapter": str(adapter) if adapter else None, "tokens": len(probes[0].tokens),
        "prompts": [p.prompt_tokens for p in probes],
        # The CPU build has no vision tower; the files are the same.
        "overrides": {"architectures": ["Gemma4ForCausalLM"]} if multimodal else None,
    }  # fmt: skip
    (work / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "support" / "vllm_greedy.py", work / "request.json", work / "answer.json"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ENVIRONMENT,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads((work / "answer.json").read_text())
    return [
        Probe(prompt=p.prompt, prompt_tokens=p.prompt_tokens, **a)
        for p, a in zip(probes, answers, strict=True)
    ]


def same(got: list[Probe], want: list[Probe]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert ours.tokens == theirs.tokens
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=2e-3)


@pytest.mark.parametrize("single", [False, True], ids=["sharded with vision", "single file, text only"])
def test_vllm_serves_the_merged_directory_and_the_exported_adapter(single: bool, tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny.write(base, multimodal=not single)
    if single:
        everything = merging.tensors(base)
        for path in base.glob("*.safetensors*"):
            path.unlink()
        save_file(everything, base / "model.safetensors", {"format": "pt"})
    flat = merging.arrays(base)
    merging.save(tmp_path / "train", base, flat, targets=list(TARGETS))
    publish.merge(
        merging.config(base, tmp_path / "train", tmp_path / "merged", tmp_path / "work", dtype="keep")
    )
    recorded = probe.run(tmp_path / "merged", None, None)
    assert recorded is not None
    same(greedy(tmp_path, tmp_path / "merged", recorded.probes), recorded.probes)
    if not single:
        config = merging.config(base, tmp_path / "train", tmp_path / "peft", tmp_path / "work2")
        publish.export(config, config.output)
        same(greedy(tmp_path, base, recorded.probes, tmp_path / "peft"), recorded.probes)
