from pathlib import Path

import pytest

from tunewright_workloads.gemma import tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both variants, as the multimodal class and (`-text`) as text-only exports."""
    root = tmp_path_factory.mktemp("gemma")
    for variant in ("dense", "ple"):
        tiny.write(root / variant, variant=variant)
        tiny.write(root / f"{variant}-text", variant=variant, multimodal=False)
    return {path.name: path for path in root.iterdir()}
