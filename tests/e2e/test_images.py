"""Every Dockerfile built on a local base, and its program started as the plan starts it: nobody, read-only.

What a kubelet runs in `make e2e` anyhow, the operator and the CPU's train image, is only looked at here.
What is built stays in the cache.
"""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.build import UnavailableError
from tests.e2e.box import images, needs
from tests.e2e.box.container import Container

from support import merged, specs
from support.serving import free_port, manifest
from tunewright_operator import plan as planner
from tunewright_operator.plan.settings import Settings
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.serve import gate, probes

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm/lib/python3.11/site-packages"
MOUNTED = "/opt/vllm"

pytestmark = pytest.mark.timeout(1800)

takes_gigabytes = pytest.mark.skipif(
    "TUNEWRIGHT_TEST_ALL" not in os.environ,
    reason="gigabytes and minutes; `make test-images` builds it (sets TUNEWRIGHT_TEST_ALL=1)",
)


@pytest.fixture(scope="module", autouse=True)
def machine() -> None:
    """Skips with what is missing where no image can be built."""
    try:
        needs.check()
    except UnavailableError as lack:
        pytest.skip(str(lack))


@pytest.fixture(scope="module")
def vllm() -> str:
    """A base as vLLM's own images are: vLLM is on Python's path. Its gigabytes are mounted, not copied."""
    if not VLLM.is_dir():
        pytest.skip("vLLM is not installed (make install-vllm makes .venv-vllm)")
    tag = "localhost/vllm-cpu:tests"
    images.make(ROOT / "tests/e2e/Dockerfile.vllm", ROOT / "tests/e2e", tag, {"PLACE": MOUNTED})
    return tag


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A volume that images' user may write."""
    folder = tmp_path / "claim"
    folder.mkdir()
    os.chown(folder, images.NONROOT, images.NONROOT)
    tmp_path.chmod(0o755)
    return folder


def test_the_serve_image_serves_with_vllm_what_the_gate_accepts(
    vllm: str, claim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = "localhost/tunewright/serve-cpu:tests"
    images.make(ROOT / "Dockerfile.serve", ROOT, tag, {"BASE": vllm, "INSTALLER": images.BASE})
    model = merged.merge(merged.base(tmp_path / "base"), claim / "model")
    manifest(model, probes.record(model))
    endpoint = specs.endpoint(
        {
            "spec.model": {"uri": "pvc://data/model"},
            "spec.accelerator": {"type": "cpu"},
            "spec.engine": {"name": "vllm", "maxModelLength": 256},
        }
    )
    stage = planner.endpoint(endpoint, Settings()).stage("serve")
    # The network is the host's, where the planned port may be somebody else's.
    assert isinstance(stage.config, ServeConfig)
    settings = stage.config.model_copy(update={"host": "127.0.0.1", "port": free_port()})
    maps = {name: {"serve.json": settings.text()} for name in stage.configmaps}
    folder = tmp_path / "serve"
    with Container(tag, stage.template, folder, maps, {"data": claim}, {MOUNTED: VLLM}) as server:
        url = f"http://127.0.0.1:{settings.port}"
        await_health(url, server)
        asked = ["--url", url, "--model-dir", str(model), "--name", "support-bot", "--dtype", "float32"]
        assert gate.main(asked) == exits.DONE, f"{capsys.readouterr()}\n{server.log()}"
        assert server.terminate(120) == exits.DONE, server.log()


@takes_gigabytes
@pytest.mark.parametrize(
    ("lock", "program"), [("tpu", "auto"), ("gpu", "torch")], ids=["JAX for TPUs", "PyTorch for GPUs"]
)
def test_a_train_image_trains(lock: str, program: Any, claim: Path, tmp_path: Path) -> None:
    tag = f"localhost/tunewright/train-{lock}:tests"
    images.make(ROOT / "Dockerfile.train", ROOT, tag, {"LOCK": lock})
    job = specs.job({**specs.TINY, "spec.training": {"steps": 2, "globalBatchSize": 4}})
    stage = planner.job(job, Settings(program=program)).stage("train")
    template, maps = stage.template, stage.configmaps
    with Container(tag, template, tmp_path / "train", maps, {"data": claim}) as trainer:
        assert trainer.wait(600) == exits.DONE, trainer.log()
    assert (claim / "out/report.json").exists()


def await_health(url: str, server: Container) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert server.process.alive, server.log()
        try:
            with opener.open(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(server.log())
